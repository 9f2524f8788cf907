"""Copies of small weights, which a worker fetches from a parameter server with one message.

A layer reads each of its weights by itself, and an optimizer sends each gradient by itself. Where
weights are small, that takes longer than the step. Here a step begins with one message for all the
small weights of a parameter server, and one takes their gradients back.
"""

import contextlib
from collections.abc import Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import stand_ins, variable_adapter
from kerasdist.training.hooks.divided_values import is_sharded

# Of a weight: copying a larger one takes longer than a message of its own.
_MOST_BYTES = 2**16


class LocalCopies:
    """The small weights of a model, for steps that update them once, at their end.

    Args:
        model: Its weights are on parameter servers.

    Attributes:
        are_all: Whether all weights that it trains are small.
    """

    def __init__(self, model: keras.Model):
        variables = model.trainable_variables
        self._variables = [variable for variable in variables if _is_small(variable.value)]
        self._remote = [variable.value for variable in self._variables]
        self._prefix = variable_adapter.unique_name()
        self.are_all = bool(variables) and len(self._variables) == len(variables)

    @contextlib.contextmanager
    def held(self) -> Generator[list]:
        """Traces a step that reads the copies; used in a function that a worker runs.

        Yields:
            What was fetched.
        """
        copies: list = [None] * len(self._remote)
        fetched = []
        for positions in _by_server(self._remote):
            values = _fetched([self._remote[position] for position in positions])
            fetched.extend(values)
            for position, value in zip(positions, values, strict=True):
                copies[position] = self._copy(position, value)
        with stand_ins.standing_in(self._variables, copies):
            yield fetched

    def put_back(self) -> None:
        """Lets the rest of the step, which may read an update, see the weights themselves."""
        stand_ins.stand_in(self._variables, self._remote)

    def _copy(self, position: int, value: tf.Tensor) -> tf.Variable:
        with tf.device("/device:CPU:0"):
            return variable_adapter.worker_copy(
                self._remote[position], f"{self._prefix}_{position}", value
            )


def sent(
    gradients: list, variables: list, note: tf.Tensor | None = None
) -> tuple[list, dict, dict]:
    """Returns gradients where their weights are: small ones arrive there with one message.

    Args:
        gradients: Tensors, IndexedSlices or None.
        variables: Keras' or TensorFlow's, those of the parameter servers.
        note: int64 [2] that travels with the gradients, or None.

    Returns:
        The gradients; by device those that have arrived there; and by device the note, where it
        came with a message of small ones.
    """
    result, arrived, notes = list(gradients), {}, {}
    dense = []
    for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        weight = variable_adapter.value_of(variable)
        if gradient is None or is_sharded(weight):
            continue
        is_dense = not isinstance(gradient, tf.IndexedSlices)
        if is_dense and gradient.dtype == weight.dtype and _is_small(weight):
            dense.append(index)
            continue
        device = weight.device
        result[index], there = sent_to(device, gradient)
        arrived.setdefault(device, []).extend(there)
    for group in _by_server([variable_adapter.value_of(variables[index]) for index in dense]):
        positions = [dense[position] for position in group]
        weights = [variable_adapter.value_of(variables[position]) for position in positions]
        device, dtype = weights[0].device, weights[0].dtype
        small, like = [gradients[position] for position in positions], weights
        goes_along = note is not None and device not in notes
        if goes_along:
            bits = tf.bitcast(note, dtype)  # What is copied and never computed with.
            small, like = [*small, bits], [*weights, bits]
        packed = pack(small)
        # Without what the step waits for on the worker: the gradients do so.
        with tf.device(device), tf.control_dependencies(None):
            parts = unpack(tf.identity(packed), like)  # A gradient's shape may be unknown.
            if goes_along:
                notes[device] = tf.bitcast(parts.pop(), tf.int64)
        for position, part in zip(positions, parts, strict=True):
            result[position] = part
        arrived.setdefault(device, []).append(parts[0])
    return result, arrived, notes


def sent_to(device: str, gradient: tf.Tensor | tf.IndexedSlices) -> tuple:
    """Returns a gradient where it is sent to, and the tensors that it is of."""
    with tf.device(device), tf.control_dependencies(None):
        if not isinstance(gradient, tf.IndexedSlices):
            there = tf.identity(gradient)
            return there, [there]
        parts = (gradient.values, gradient.indices, gradient.dense_shape)
        there = [tf.identity(part) for part in parts if part is not None]
        return tf.IndexedSlices(*there), there


def _is_small(variable: Any) -> bool:
    if is_sharded(variable) or not variable.shape.is_fully_defined():
        return False
    return variable.shape.num_elements() * variable.dtype.size <= _MOST_BYTES


def _by_server(variables: list) -> list[list[int]]:
    """Returns the positions of variables on the same task with the same dtype."""
    groups: dict = {}
    for position, variable in enumerate(variables):
        groups.setdefault((variable.device, variable.dtype), []).append(position)
    return list(groups.values())


def _fetched(variables: list) -> list[tf.Tensor]:
    with tf.device(variables[0].device):
        packed = pack([variable.read_value() for variable in variables])
    with tf.device("/device:CPU:0"):
        return unpack(tf.identity(packed), variables)


def pack(tensors: list) -> tf.Tensor:
    """Returns tensors as one, which is sent as one message."""
    return tf.concat([tf.reshape(each, [-1]) for each in tensors], axis=0)


def unpack(packed: tf.Tensor, like: list) -> list[tf.Tensor]:
    """Returns what `pack` was given, in the shapes of `like`."""
    parts = tf.split(packed, [each.shape.num_elements() for each in like])
    return [tf.reshape(part, each.shape) for part, each in zip(parts, like, strict=True)]
