"""Gradients of tables, as slices: a row for each lookup, on every replica.

Optimizers such as Adam square each slice by itself. Rows that are looked up for an example are the
same slices on one device. Rows that are looked up once for all examples, such as the positions of
tokens or what sparse inputs have in common, are one slice there, the sum over all examples, and
must be one here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

# Operations of which no row comes twice in what they give.
_KEEPING_ROWS = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice")


class Parcel:
    """A gradient as it is sent to the other replicas, and their sum as it is unpacked.

    Args:
        gradient: A tensor or IndexedSlices.
        dependence: The `Dependence` of the step, or None.

    Attributes:
        tensors: What is sent: tensors, and IndexedSlices that are joined.
    """

    def __init__(self, gradient, dependence):
        self._gradient = gradient
        self._pieces = _pieces_of(gradient)
        self._have_common_rows = [_has_common_rows(each, dependence) for each in self._pieces]
        self._have_each_row_once = [_has_each_row_once(each) for each in self._pieces]
        self.tensors = [
            piece.values if is_common else piece
            for piece, is_common in zip(self._pieces, self._have_common_rows, strict=True)
        ]

    def unpacked(self, sums: Iterator) -> Any:
        """Returns the gradient of all replicas.

        Args:
            sums: What came of `tensors`.
        """
        whole = [
            map_values(piece, lambda _, total=total: total)
            if is_common
            else added_up(total)
            if is_once
            else total
            for piece, total, is_common, is_once in zip(
                *(self._pieces, sums, self._have_common_rows, self._have_each_row_once),
                strict=True,
            )
        ]
        return whole[0] if len(whole) == 1 else _joined(whole)


def _pieces_of(gradient) -> list:
    """Returns the slices of each use of a table that is used more than once in a step."""
    if not _is_traced(gradient):
        return [gradient]
    values, indices = gradient.values.op, gradient.indices.op
    are_joined = values.type == indices.type == "ConcatV2"
    if not are_joined or len(values.inputs) != len(indices.inputs):
        return [gradient]
    pairs = zip(values.inputs[:-1], indices.inputs[:-1], strict=True)
    return [tf.IndexedSlices(*pair, gradient.dense_shape) for pair in pairs]


def _joined(pieces: list) -> tf.IndexedSlices:
    values = tf.concat([each.values for each in pieces], axis=0)
    indices = tf.concat([each.indices for each in pieces], axis=0)
    return tf.IndexedSlices(values, indices, pieces[0].dense_shape)


def _has_common_rows(gradient, dependence) -> bool:
    """Whether all replicas look up the same rows in the same order, whatever their examples are."""
    if dependence is None or not _is_traced(gradient):
        return False
    return dependence.is_common(gradient.indices, may_read=False)


def _is_traced(gradient) -> bool:
    return isinstance(gradient, tf.IndexedSlices) and tf.is_symbolic_tensor(gradient.indices)


def _has_each_row_once(gradient) -> bool:
    """Whether slices are of rows that were looked up once for all examples, and each of them once.

    For sparse inputs TensorFlow does so, and positions of tokens are a range. Optimizers square
    each slice by itself: on one device it is that of all examples.
    """
    if not _is_traced(gradient):
        return False
    operation = gradient.indices.op
    while (source := _source_of(operation)) is not None:
        operation = source
    if operation.type == "Const":
        rows = np.ravel(tf.get_static_value(operation.outputs[0]))
        return len(np.unique(rows)) == len(rows)
    return operation.type == "Range" or operation.type.startswith("Unique")


def _source_of(operation):
    """Returns what an operation takes rows from, none of them twice; None where it may change that.

    Keras' `take` counts rows below 0 from the end.
    """
    if operation.type in _KEEPING_ROWS:
        return operation.inputs[0].op
    if operation.type == "SelectV2":
        condition, _, rows = operation.inputs
        is_below_0 = condition.op.type == "Less" and condition.op.inputs[0] is rows
        return rows.op if is_below_0 else None
    return None


def added_up(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices with one for each row, those of the same row added up."""
    rows, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def values_of(gradient):
    """Returns the numbers of a gradient: itself, or the values of its slices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def map_values(gradient, function):
    """Returns `gradient` with `function` applied to its values; None and IndexedSlices stay."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
