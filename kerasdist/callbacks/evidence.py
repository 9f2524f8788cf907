"""Keeps what a replica knows about a step that is not finite, for its explanation."""

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.hooks import step_variables


class Evidence:
    """What one replica knew about a step that was not finite, kept on the device.

    Args:
        strategy: A strategy of ours.
        num_variables: How many are trained.
    """

    def __init__(self, strategy: tf.distribute.Strategy, num_variables: int):
        self._strategy = strategy
        self._num_replicas, self._num_variables = strategy.num_replicas_in_sync, num_variables
        self._names: tuple = ()
        self._leaves: list | None = None
        self._structure = None
        # Few, and long ones: each costs time in every step, since a condition passes it on.
        with self._creation():
            # The step, how many there were, and whether it was the first update of its call.
            self._counts: Any = _variable(tf.constant([-1, 0, 1], tf.int64))
            self._found: Any = None

    def _creation(self):
        stack = contextlib.ExitStack()
        stack.enter_context(tf.init_scope())
        stack.enter_context(step_variables.being_made(self._strategy))
        return stack

    def is_there(self):
        """Returns whether something is kept: bool scalar. Traced."""
        return self._counts[0] >= 0

    def keep(
        self, step: tf.Tensor, found: Any, names: Iterable[str], data: Any, *, is_first: bool
    ) -> None:
        """Keeps what is known about the first such step, and counts them all. Traced.

        Args:
            step: int64 scalar, which update it would have been.
            found: float32 [replicas + variables + losses]: `flags`, `sizes` and the losses.
            names: Of the losses.
            data: The batch; () keeps none.
            is_first: Whether the same call of `train_step` made no other update before.
        """
        leaves = tf.nest.flatten(data, expand_composites=True)
        leaves = [leaf for leaf in leaves if leaf is not None]
        if self._leaves is None:
            self._names, self._structure = tuple(names), data
            with self._creation():
                self._found = _variable(tf.zeros(found.shape))
                self._leaves = [_variable_for(leaf) for leaf in leaves]

        def keep():
            self._found.assign(found)
            for variable, leaf in zip(self._leaves or (), leaves, strict=True):
                variable.assign(leaf)

        is_bad = tf.reduce_any(found[: self._num_replicas] > 0)
        counts = self._counts.read_value()
        is_new = is_bad & (counts[0] < 0)
        more = counts + tf.stack([0, tf.cast(is_bad, tf.int64), 0])
        self._counts.assign(tf.where(is_new, tf.stack([step, 1, int(is_first)]), more))
        tf.cond(is_new, keep, lambda: None)

    def forget(self) -> None:
        """Makes room for the next step."""
        self._counts.assign([-1, 0, 1])

    @property
    def step(self) -> int:
        """Which update it would have been, from 1; -1 if there is none."""
        return int(self._counts.numpy()[0])

    @property
    def num_bad(self) -> int:
        """How many steps there were."""
        return int(self._counts.numpy()[1])

    @property
    def is_first(self) -> bool:
        """Whether the same call of `train_step` made no other update before."""
        return bool(self._counts.numpy()[2])

    @property
    def flags(self) -> np.ndarray:
        """1 for each of all replicas that was not finite, 0 for the others."""
        return self._found.numpy()[: self._num_replicas]

    @property
    def sizes(self) -> np.ndarray:
        """Half of the squared L2 norm of each gradient of this replica."""
        return self._found.numpy()[self._num_replicas :][: self._num_variables]

    @property
    def losses(self) -> dict[str, float]:
        """The losses of this replica by their names."""
        values = self._found.numpy()[self._num_replicas + self._num_variables :]
        return dict(zip(self._names, map(float, values), strict=False))

    def batch(self):
        """Returns what the replica got, as arrays in the structure of the data; None of no data."""
        if not self._leaves:
            return None
        kept = iter(self._leaves or ())

        def leaf(value: Any):
            if value is None:
                return None
            parts = tf.nest.flatten(value, expand_composites=True)
            parts = [tf.convert_to_tensor(next(kept)) for _ in parts]
            whole = tf.nest.pack_sequence_as(value, parts, expand_composites=True)
            return whole.numpy() if isinstance(whole, tf.Tensor) else whole

        return tf.nest.map_structure(leaf, self._structure)


def _variable(value: Any):
    return tf.Variable(value, trainable=False)


def _variable_for(leaf: Any):
    return tf.Variable(tf.zeros([0], leaf.dtype), shape=tf.TensorShape(None), trainable=False)
