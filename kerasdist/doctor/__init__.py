"""The check-up: does a deployment give what one device gives?

`table` examines this machine with small models, `program` examines a program of the user.
"""
