"""Paths that are not on a disk of this machine, such as "gs://bucket/run"."""


def is_remote(path: str) -> bool:
    """Whether `tf.io.gfile` alone can read and write a path."""
    return "://" in path
