"""Synchronous workers over parameter servers; files are named after their counterparts.

Workers read and compute as asynchronous ones do (`parameter_servers`), but make no update: they
stage gradients and counts on the servers (`contributions`, `staged_update`), and a server makes
each update of those of several batches (`rounds`, `step_function`).
"""
