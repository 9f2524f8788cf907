"""Add up the losses of the last steps on the device until somebody reads them."""

import weakref
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.hooks import step_variables


class LossSums:
    """Keeps the losses of the last step, and their sum over the steps, for any number of readers.

    Each worker adds up its own part of the global losses, which needs no message.

    Args:
        strategy: A strategy of ours.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._names: tuple = ()
        self._last: Any = None  # The losses of the last step, and a 1.
        self._sums: Any = None  # Over the steps; the last one is the number of these.
        self._readers: weakref.WeakSet[LossReader] = weakref.WeakSet()

    def add(self, losses: dict) -> None:
        """Adds the losses of a step: float32 scalars by name. Traced as a part of it."""
        if not losses:
            return
        if self._sums is None:
            self._names = tuple(losses)
            made = step_variables.being_made(self._strategy)
            with tf.init_scope(), tf.device("CPU:0"), made:
                self._last = tf.Variable(tf.zeros([len(losses) + 1]), trainable=False)
                self._sums = tf.Variable(tf.zeros([len(losses) + 1]), trainable=False)
        last = tf.stack([*(tf.cast(losses[name], tf.float32) for name in self._names), 1.0])
        self._last.assign(last)
        self._sums.assign_add(last)

    def reader(self) -> "LossReader":
        """Returns a new reader, for the steps from now on."""
        self._collect()
        reader = LossReader(self)
        self._readers.add(reader)
        return reader

    def _collect(self) -> np.ndarray | None:
        """Brings the sums to all readers; returns the losses of the last step, if there is one."""
        if self._sums is None:
            return None
        sums = self._sums.numpy()
        self._sums.assign(tf.zeros_like(self._sums))
        for reader in self._readers:
            reader.sums = reader.sums + sums
        return self._last.numpy()[:-1]

    def take(self, reader: "LossReader") -> tuple[dict[str, float], dict[str, float]]:
        """Returns what `LossReader.take` does."""
        last = self._collect()
        if last is None:
            return {}, {}
        (*total, count), reader.sums = reader.sums, np.zeros(())
        last, total = peers.sum_over(self._strategy, [last, total])
        means = total / max(count, 1)
        return (
            dict(zip(self._names, map(float, last), strict=True)),
            dict(zip(self._names, map(float, means), strict=True)),
        )


class LossReader:
    """Who reads losses now and then; others may read them at other times.

    Args:
        of: What adds them up.

    Attributes:
        sums: Of the losses since the last look, and the number of steps: float64.
    """

    def __init__(self, of: LossSums):
        self._of = of
        self.sums = np.zeros(())

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the losses of the last step and their means since the last look.

        All workers must call it.
        """
        return self._of.take(self)
