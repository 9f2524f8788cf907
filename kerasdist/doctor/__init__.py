"""The check-up: does a deployment give what one device gives?

`table` examines this machine on models of ours, `program` examines a program of the user's.
"""
