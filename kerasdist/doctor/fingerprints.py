"""A number for each example of a batch, which shows whether two runs read the same data."""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf


def fingerprints(batch: Any) -> np.ndarray:
    """Returns a number for each example: uint32 [examples], the same for the same content.

    Args:
        batch: Structure of tensors or arrays [examples, ...]; scalars and None are ignored.
    """
    numbers: list[int] = []
    for leaf in tf.nest.flatten(batch):
        for position, row in enumerate(_rows(leaf)):
            if position == len(numbers):
                numbers.append(0)
            numbers[position] = zlib.crc32(row, numbers[position])
    return np.array(numbers, "uint32")


def _rows(leaf: Any) -> Iterable[bytes]:
    if isinstance(leaf, tf.RaggedTensor):
        return (repr(row).encode() for row in leaf.to_list())
    if isinstance(leaf, tf.SparseTensor):
        return _rows_of_sparse(leaf)
    if not tf.is_tensor(leaf) and not isinstance(leaf, np.ndarray):
        return ()
    array = np.asarray(leaf)
    if array.ndim == 0:
        return ()
    if array.dtype == object:  # Strings.
        return (repr(row).encode() for row in array)
    return (row.tobytes() for row in array)


def _rows_of_sparse(leaf: tf.SparseTensor) -> Iterable[bytes]:
    indices, values = leaf.indices.numpy(), leaf.values.numpy()
    for row in range(int(leaf.dense_shape[0])):
        is_in_row = indices[:, 0] == row
        yield repr((indices[is_in_row, 1:], values[is_in_row])).encode()
