"""Stands before the package of this name, which Keras then finds not installed."""

raise ImportError("Left out: see tests/conftest.py.")
