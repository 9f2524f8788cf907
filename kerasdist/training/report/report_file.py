"""Writes a file about a training, on a disk or at a remote path."""

import os

import tensorflow as tf


def write(path: str, content: bytes) -> None:
    """Writes a file, and creates the folder that it is in.

    Raises:
        OSError, tf.errors.OpError: It cannot be written.
    """
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(content)
