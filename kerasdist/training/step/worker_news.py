"""Tells workers in their steps which of them want to stop, and whether their data are alike.

On a worker that is alone nothing is told, nor compared.
"""

import contextlib
from typing import Any

import tensorflow as tf

from kerasdist.training.context import deployment, peers
from kerasdist.training.data import data_checks
from kerasdist.training.hooks import step_variables
from kerasdist.training.step import replica_run

_STOP = "stop requests"


class WorkerNews:
    """What this worker has to tell the others with its steps, and has heard of them.

    Args:
        strategy: One of ours, of peers.

    Attributes:
        has_others: Whether there are other workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self.has_others = peers.count(strategy) > 1
        self._watch = deployment.of(strategy).step_watch
        with step_variables.being_made(strategy), tf.device("CPU:0"):
            self._stop_request = tf.Variable(0.0, trainable=False)
            self._num_stop_requests = tf.Variable(0.0, trainable=False)
            self._digest = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._is_digest_due = tf.Variable(True, trainable=False)
            self._num_read: Any = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._is_comparison_due = True

    def restart(self) -> None:
        """Begins a `fit` or `evaluate`: nobody wants to stop."""
        self._stop_request.assign(0)
        self._num_stop_requests.assign(0)
        if self.has_others:
            self.look_again()

    def look_again(self) -> None:
        """Compares the next batch of the workers, too, as that of a new epoch."""
        self._is_digest_due.assign(True)
        self._is_comparison_due = True

    def request_stop(self) -> None:
        """Tells the other workers, with the next gradients, that this one wants to stop."""
        self._stop_request.assign(1)

    def num_stop_requests(self) -> float:
        """Returns how many workers wanted to stop before the last step."""
        return float(tf.convert_to_tensor(self._num_stop_requests))

    def call(self, *, is_first: bool) -> contextlib.AbstractContextManager:
        """Returns a context for a call of steps, in which a worker that is late is named.

        Args:
            is_first: Whether it takes longer than others.
        """
        if self._watch is None:
            return contextlib.nullcontext()
        return self._watch.call(lambda: int(self._num_read.numpy()), is_first=is_first)

    def expect_trace(self) -> None:
        """Lets the call that runs take longer than others."""
        if self._watch is not None:
            self._watch.expect_trace()

    def note_read(self, batch: Any) -> None:
        """Notes that a batch was read; traced, or eager."""
        if self._watch is not None:
            with replica_run.after(batch):
                self._num_read.assign_add(1)

    def note_batch(self, batch: Any) -> list[tf.Tensor]:
        """Notes what to compare with the batch of others; traced. Returns what must run before."""
        if not self.has_others:
            return []
        is_due = self._is_digest_due.read_value()
        digest = tf.cond(is_due, lambda: data_checks.digest(batch), self._digest.read_value)
        with tf.control_dependencies([self._digest.assign(digest)]):
            return [self._is_digest_due.assign(False)]

    def compare_batches(self) -> None:
        """Checks after a call that its first batch was that of all workers, where that is due.

        Raises:
            ValueError: It was not.
        """
        if self._is_comparison_due and self.has_others:
            data_checks.check_equal_batches(self._strategy, tf.convert_to_tensor(self._digest))
        self._is_comparison_due = False

    def extra_sums(self) -> tuple[tuple[str, tf.Tensor], ...]:
        """Returns what travels with the gradients, by names; traced."""
        return ((_STOP, self._stop_request.read_value()),) if self.has_others else ()

    def hear(
        self, sums: dict[str, tf.Tensor], batch: Any, checks: list[tf.Tensor]
    ) -> tf.Tensor | None:
        """Notes what has travelled; traced. Returns how many want to stop; None where it has not.

        Args:
            sums: Of all workers, by names.
            batch: What must be there before.
            checks: Tensors that must be there as well.
        """
        if _STOP not in sums:
            return None
        with replica_run.after(batch, checks):
            self._num_stop_requests.assign(tf.cast(sums[_STOP], tf.float32))
        return sums[_STOP]
