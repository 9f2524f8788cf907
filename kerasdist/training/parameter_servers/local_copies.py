"""Sends small weights to a worker, and their gradients back, with one message per server.

A layer reads each of its weights by itself, and an optimizer sends each gradient by itself. Where
weights are small, that takes longer than the step. Here a step begins with one message for all the
small weights of a parameter server, and one takes their gradients back.
"""

import collections
import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import stand_ins, variable_adapter
from kerasdist.training.hooks.divided_values import is_sharded

# Copying a larger weight takes longer than a message of its own.
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
        self._variables = [variable for variable in variables if is_small(variable.value)]
        self._remote = [variable.value for variable in self._variables]
        self._prefix = variable_adapter.unique_name()
        self.are_all = bool(variables) and len(self._variables) == len(variables)

    @contextlib.contextmanager
    def held(self, fetch: Callable[[list], list] | None = None) -> Generator[list]:
        """Traces a step that reads the copies; used in a function that a worker runs.

        Args:
            fetch: Called as fetch(variables); returns their values. The default is `fetched`.

        Yields:
            What was fetched.
        """
        values = (fetch or fetched)(self._remote)
        copies = [
            variable_adapter.worker_copy(remote, f"{self._prefix}_{position}", value)
            for position, (remote, value) in enumerate(zip(self._remote, values, strict=True))
        ]
        with stand_ins.standing_in(self._variables, copies):
            yield values

    @property
    def remote(self) -> list[tf.Variable]:
        """TensorFlow's variables that there are copies of."""
        return list(self._remote)

    def let_go(self, variables: list[keras.Variable]) -> None:
        """Holds no copies of some variables any more, in the traces that follow."""
        others = {id(variable) for variable in variables}
        self._variables = [each for each in self._variables if id(each) not in others]
        self._remote = [variable.value for variable in self._variables]
        self._prefix = variable_adapter.unique_name()

    def put_back(self) -> None:
        """Lets the rest of the step, which may read an update, see the weights themselves."""
        stand_ins.stand_in(self._variables, self._remote)


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
    dense = {}
    for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        weight = variable_adapter.value_of(variable)
        if gradient is None or is_sharded(weight):
            continue
        is_dense = not isinstance(gradient, tf.IndexedSlices)
        if is_dense and gradient.dtype == weight.dtype and is_small(weight):
            dense[index] = weight
            continue
        device = weight.device
        result[index], there = sent_to(device, gradient)
        arrived.setdefault(device, []).extend(there)
    for group in by_server(dense):
        small, like = [gradients[index] for index in group], list(group.values())
        device = like[0].device
        goes_along = note is not None and device not in notes
        if goes_along:
            bits = tf.bitcast(note, like[0].dtype)  # They are copied and never computed with.
            small, like = [*small, bits], [*like, bits]
        packed = pack(small)
        # What the step waits for on the worker, the gradients have waited for.
        with tf.device(device), tf.control_dependencies(None):
            parts = unpack(tf.identity(packed), like)  # A gradient's shape may be unknown.
            if goes_along:
                notes[device] = tf.bitcast(parts.pop(), tf.int64)
        for index, part in zip(group, parts, strict=True):
            result[index] = part
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


def is_small(variable: Any) -> bool:
    """Whether a variable of TensorFlow's is sent together with others."""
    if is_sharded(variable) or not variable.shape.is_fully_defined():
        return False
    return variable.shape.num_elements() * variable.dtype.size <= _MOST_BYTES


def by_server(variables: dict[int, Any]) -> Iterable[dict[int, Any]]:
    """Returns variables, by numbers of theirs, in groups on the same task with the same dtype."""
    groups: dict = collections.defaultdict(dict)
    for number, variable in variables.items():
        groups[variable.device, variable.dtype][number] = variable
    return groups.values()


def fetched(variables: list) -> list[tf.Tensor]:
    """Returns on a worker what variables of servers hold; small ones come with one message."""
    values: dict[int, tf.Tensor] = {}
    small = {position: each for position, each in enumerate(variables) if is_small(each)}
    for group in by_server(small):
        members = list(group.values())
        with tf.device(members[0].device):
            packed = pack([variable.read_value() for variable in members])
        with tf.device("/device:CPU:0"):
            values.update(zip(group, unpack(tf.identity(packed), members), strict=True))
    for position, variable in enumerate(variables):
        if position not in small:
            with tf.device(variable.device):
                value = variable.read_value()
            with tf.device("/device:CPU:0"):
                values[position] = tf.identity(value)
    return [values[position] for position in range(len(variables))]


def pack(tensors: list) -> tf.Tensor:
    """Returns tensors as one, which is sent as one message."""
    return tf.concat([tf.reshape(each, [-1]) for each in tensors], axis=0)


def unpack(packed: tf.Tensor, like: list) -> list[tf.Tensor]:
    """Returns what `pack` was given, in the shapes of `like`."""
    parts = tf.split(packed, [each.shape.num_elements() for each in like])
    return [tf.reshape(part, each.shape) for part, each in zip(parts, like, strict=True)]
