"""Losses, metrics and batch statistics of the global batch."""
