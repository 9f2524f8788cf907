"""Paths that are not on a disk of this machine, such as "gs://bucket/run"."""

import os


def is_remote(path: str) -> bool:
    """Whether `tf.io.gfile` alone can read and write a path."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns a path that stays the same if a callback changes the working directory."""
    return path if is_remote(path) else os.path.abspath(path)
