"""Sum gradients of tables, which are slices: a row for each lookup, on every replica.

Optimizers such as Adam square each slice by itself. Rows that are looked up for an example are the
same slices on one device. Rows that are looked up once for all examples, such as the positions of
tokens or what sparse inputs have in common, are one slice there, the sum over all examples, and
must be one here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.hooks.gradient_values import added_up, map_values
from kerasdist.training.replica.eager_operations import operation_of
from kerasdist.training.replica.replicas import CannotMeetError

# Operations of which no row comes twice in what they give.
_KEEPING_ROWS = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice")
# Operations that give as many of the same rows as they are told.
_REPEATING_ROWS = ("BroadcastTo", "Fill", "Tile")


class Parcel:
    """A gradient as it is sent to the other replicas, and their sum as it is unpacked.

    Args:
        gradient: A tensor or IndexedSlices.
        dependence: The `Dependence` of the step, or None.

    Attributes:
        tensors: What is sent: tensors, and IndexedSlices that are joined.
    """

    def __init__(self, gradient: Any, dependence: Any):
        self._uses = [_Use(piece, dependence) for piece in _pieces_of(gradient)]
        self.tensors = [use.sent for use in self._uses]

    def unpacked(self, sums: Iterator) -> Any:
        """Returns the gradient of all replicas.

        Args:
            sums: What came of `tensors`.
        """
        whole = [use.unpacked(total) for use, total in zip(self._uses, sums, strict=True)]
        return whole[0] if len(whole) == 1 else _joined(whole)


def taken_apart(gradient: Any, dependence: Any) -> tuple[list, list[bool]]:
    """Returns a gradient of a function that is traced, for the graph that calls it.

    What rows are looked up for is read in the graph that looks them up.

    Returns:
        The slices of each use of a table, and of each whether all replicas have the same rows; a
        tensor by itself.

    Raises:
        CannotMeetError: The rows of a table are known only while the function runs.
    """
    pieces = _pieces_of(gradient)
    uses = [_Use(piece, dependence) for piece in pieces]
    for use in uses:
        use.check_can_be_handed_on()
    return pieces, [use.has_common_rows for use in uses]


def put_together(pieces: list, have_common_rows: list[bool], dependence: Any) -> Any:
    """Returns the gradient of what `taken_apart` has given, in the graph that calls."""
    for piece, has_common_rows in zip(pieces, have_common_rows, strict=True):
        if has_common_rows:
            dependence.end_at([piece.indices])
    return pieces[0] if len(pieces) == 1 else _joined(pieces)


class _Use:
    """The gradient by one use of a variable; see `Parcel`."""

    def __init__(self, gradient: Any, dependence: Any):
        self._gradient = gradient
        has_rows = isinstance(gradient, tf.IndexedSlices) and dependence is not None
        self.has_common_rows = has_rows and _has_common_rows(gradient, dependence)
        self._has_each_row_once = _has_each_row_once(gradient)
        self._sends_values = self.has_common_rows and _is_traced(gradient)
        self.sent = gradient.values if self._sends_values else gradient

    def check_can_be_handed_on(self) -> None:
        """Checks that nothing but `has_common_rows` is to be known of the rows.

        Raises:
            CannotMeetError: Each row comes once, and others have others.
        """
        if self._has_each_row_once and not self.has_common_rows:
            raise CannotMeetError("the rows of a table that are looked up are found in the step")

    def unpacked(self, total: Any):
        if self._sends_values:
            return map_values(self._gradient, lambda _: total)
        if self.has_common_rows and _are_equal_rows(self._gradient, total):
            shape = [-1, *self._gradient.values.shape]
            values = tf.reduce_sum(tf.reshape(total.values, shape), axis=0)
            return map_values(self._gradient, lambda _: values)
        return added_up(total) if self._has_each_row_once else total


def _pieces_of(gradient: Any) -> list:
    """Returns the slices of each use of a table that is used more than once in a step."""
    indices = _operation_of_rows(gradient)
    if indices is None or indices.type != "ConcatV2":
        return [gradient]
    *rows, _ = indices.inputs
    if _is_traced(gradient):
        operation = gradient.values.op
        if operation.type != "ConcatV2" or len(operation.inputs) != len(indices.inputs):
            return [gradient]
        *values, _ = operation.inputs
    else:
        values = tf.split(gradient.values, [int(tf.size(each)) for each in rows])
    pairs = zip(values, rows, strict=True)
    return [tf.IndexedSlices(*pair, gradient.dense_shape) for pair in pairs]


def _joined(pieces: list) -> tf.IndexedSlices:
    values = tf.concat([each.values for each in pieces], axis=0)
    indices = tf.concat([each.indices for each in pieces], axis=0)
    return tf.IndexedSlices(values, indices, pieces[0].dense_shape)


def _has_common_rows(gradient: Any, dependence: Any) -> bool:
    """Whether all replicas look up the same rows in the same order, whatever their examples are.

    Without a graph it may only seem so; see `EagerOperations`.
    """
    rows = gradient.indices
    if not dependence.is_common_by_now(rows):
        return False
    return _is_traced(gradient) or not _are_for_each_example(rows, dependence.num_examples)


def _are_for_each_example(rows: Any, num_examples: int) -> bool:
    """Whether rows are the same ones for each example: Keras reads the size of a batch in Python.

    A single example repeats none, but there is still the operation that would.
    """
    operation = operation_of(rows)
    if rows.shape.rank > 1 and rows.shape[0] == num_examples:
        if num_examples == 1 and operation is not None and operation.type in _REPEATING_ROWS:
            return True
        if num_examples > 1 and tf.reduce_all(rows == rows[:1]):
            return True
    source = None if operation is None else _source_of(operation)
    return source is not None and _are_for_each_example(source, num_examples)


def _are_equal_rows(own: tf.IndexedSlices, total: tf.IndexedSlices) -> bool:
    """Whether what was sent together is of the same rows from each replica."""
    num_replicas = peers.num_replicas(tf.distribute.get_strategy())
    count = int(tf.size(own.indices))
    if int(tf.size(total.indices)) != num_replicas * count:
        return False
    rows = tf.reshape(total.indices, [num_replicas, count])
    return bool(tf.reduce_all(rows == rows[:1]))


def _operation_of_rows(gradient: Any):
    return operation_of(gradient.indices) if isinstance(gradient, tf.IndexedSlices) else None


def _is_traced(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices) and tf.is_symbolic_tensor(gradient.indices)


def _has_each_row_once(gradient: Any) -> bool:
    """Whether slices are of rows that were looked up once for all examples, and each of them once.

    For sparse inputs TensorFlow does so, and positions of tokens are a range. Optimizers square
    each slice by itself: on one device it is that of all examples.
    """
    operation = _operation_of_rows(gradient)
    while operation is not None and (source := _source_of(operation)) is not None:
        operation = operation_of(source)
    if operation is None:
        return False
    if operation.type == "Const":
        rows = np.ravel(tf.get_static_value(operation.outputs[0]))
        return len(np.unique(rows)) == len(rows)
    return operation.type == "Range" or operation.type.startswith("Unique")


def _source_of(operation: Any):
    """Returns the rows that an operation takes, none of them twice; None where it may change that.

    Keras' `take` counts rows below 0 from the end.
    """
    if operation.type in _KEEPING_ROWS:
        return operation.inputs[0]
    if operation.type == "SelectV2":
        condition, _, rows = operation.inputs
        test = operation_of(condition)
        is_below_0 = test is not None and test.type == "Less" and test.inputs[0] is rows
        return rows if is_below_0 else None
    return None
