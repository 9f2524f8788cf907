"""What a replica knows about a step that is not finite."""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.step import step_variables


class Evidence:
    """What one replica knew about a step that was not finite, kept on the device.

    Args:
        strategy: A strategy of ours.
        num_variables: How many are trained.
    """

    def __init__(self, strategy, num_variables: int):
        self._strategy = strategy
        self._names: tuple = ()
        self._leaves: list | None = None
        self._structure = None
        with self._creation():
            self._step: Any = _variable(tf.constant(-1, tf.int64))
            self._num_bad: Any = _variable(0)
            self._is_first: Any = _variable(True)
            self._flags: Any = _variable(tf.zeros([strategy.num_replicas_in_sync]))
            self._sizes: Any = _variable(tf.zeros([num_variables]))
            self._losses: Any = None

    def _creation(self):
        stack = contextlib.ExitStack()
        stack.enter_context(tf.init_scope())
        stack.enter_context(step_variables.being_made(self._strategy))
        return stack

    def is_there(self):
        """Returns whether something is kept: bool scalar. Traced."""
        return self._step >= 0

    def keep(
        self, step, flags, indices, sizes, losses: dict, values, data, *, is_first: bool
    ) -> None:
        """Keeps what is known about the first such step, and counts them all. Traced."""
        leaves = tf.nest.flatten(data, expand_composites=True)
        leaves = [leaf for leaf in leaves if leaf is not None]
        if self._leaves is None:
            self._names, self._structure = tuple(losses), data
            with self._creation():
                self._losses = _variable(tf.zeros([max(len(losses), 1)]))
                self._leaves = [_variable_for(leaf) for leaf in leaves]

        def keep():
            self._step.assign(step)
            self._flags.assign(flags)
            self._is_first.assign(is_first)
            self._sizes.scatter_nd_update(indices, sizes)
            self._losses.assign(values)
            for variable, leaf in zip(self._leaves or (), leaves, strict=True):
                variable.assign(leaf)

        is_bad = tf.reduce_any(flags > 0)
        self._num_bad.assign_add(tf.cast(is_bad, tf.int32))
        tf.cond(is_bad & ~self.is_there(), keep, lambda: None)

    def forget(self) -> None:
        """Makes room for the next step."""
        self._step.assign(-1)
        self._num_bad.assign(0)

    @property
    def step(self) -> int:
        """Which update it would have been, from 1; -1 if there is none."""
        return int(self._step.numpy())

    @property
    def num_bad(self) -> int:
        """How many steps there were."""
        return int(self._num_bad.numpy())

    @property
    def is_first(self) -> bool:
        """Whether the same call of `train_step` made no other update before."""
        return bool(self._is_first.numpy())

    @property
    def flags(self) -> np.ndarray:
        """1 for each of all replicas that was not finite, 0 for the others."""
        return self._flags.numpy()

    @property
    def sizes(self) -> np.ndarray:
        """Half of the squared L2 norm of each gradient of this replica."""
        return self._sizes.numpy()

    @property
    def losses(self) -> dict[str, float]:
        """The losses of this replica by their names."""
        return dict(zip(self._names, map(float, self._losses.numpy()), strict=False))

    def batch(self):
        """Returns what the replica got, as arrays in the structure of the data."""
        kept = iter(self._leaves or ())

        def leaf(value):
            if value is None:
                return None
            parts = tf.nest.flatten(value, expand_composites=True)
            parts = [tf.convert_to_tensor(next(kept)) for _ in parts]
            whole = tf.nest.pack_sequence_as(value, parts, expand_composites=True)
            return whole.numpy() if isinstance(whole, tf.Tensor) else whole

        return tf.nest.map_structure(leaf, self._structure)


def _variable(value):
    return tf.Variable(value, trainable=False)


def _variable_for(leaf):
    return tf.Variable(tf.zeros([0], leaf.dtype), shape=tf.TensorShape(None), trainable=False)
