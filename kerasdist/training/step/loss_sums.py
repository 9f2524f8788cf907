"""The losses of the last steps, added up on the device until somebody reads them."""

from typing import Any

import tensorflow as tf

from kerasdist.private import tensorflow_adapter
from kerasdist.training import peers


class LossSums:
    """Keeps the losses of the last step, and their mean over the steps since the last look.

    Each worker adds up its own part of the global losses, which needs no message.

    Args:
        strategy: A strategy of ours, of peers.
    """

    def __init__(self, strategy):
        self._strategy = strategy
        self._names: tuple = ()
        self._last: Any = None  # The losses of the last step, and a 1.
        self._sums: Any = None  # Over the steps; the last one is the number of these.

    def add(self, losses: dict) -> None:
        """Adds the losses of a step: float32 scalars by name. Traced as a part of it."""
        if not losses:
            return
        if self._sums is None:
            self._names = tuple(losses)
            with tf.init_scope(), tensorflow_adapter.outside_scopes(), tf.device("CPU:0"):
                self._last = tf.Variable(tf.zeros([len(losses) + 1]), trainable=False)
                self._sums = tf.Variable(tf.zeros([len(losses) + 1]), trainable=False)
        last = tf.stack([*(tf.cast(losses[name], tf.float32) for name in self._names), 1.0])
        self._last.assign(last)
        self._sums.assign_add(last)

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the losses of the last step and their means, and begins anew.

        All workers must call it.
        """
        if self._sums is None:
            return {}, {}
        (*last, _), (*total, count) = self._last.numpy(), self._sums.numpy()
        self._sums.assign(tf.zeros_like(self._sums))
        last, total = peers.sum_over(self._strategy, [last, total])
        means = total / max(count, 1)
        return (
            dict(zip(self._names, map(float, last), strict=True)),
            dict(zip(self._names, map(float, means), strict=True)),
        )
