"""A job's state from outside: a port and a file with its numbers, where the environment asks."""
