"""Measures inside the steps of a worker where their time goes."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import runtime

# The columns of `read`. All numbers grow from the begin of training on.
STEPS, EXAMPLES, SECS_IN_STEPS, INPUT_SECS, EXCHANGE_SECS, STALENESS = range(6)
NUM_COLUMNS = 6


class StepTimes:
    """How long the steps of this worker wait for their batches, and for the other replicas.

    TensorFlow reads the clock where it runs. On an accelerator that is when work is handed to it.

    Args:
        is_on: Whether to measure at all.
    """

    def __init__(self, *, is_on: bool):
        self._has_clock = has_clock()
        self._is_on = is_on and self._has_clock
        self._secs_in_steps = self._input_secs = 0.0
        with tf.device("CPU:0"):
            self._waits: Any = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def read(self) -> np.ndarray:
        """Returns float64 [1, NUM_COLUMNS]; the steps, the examples and the staleness stay 0.

        No row without a clock.
        """
        if not self._has_clock:
            return np.zeros([0, NUM_COLUMNS])
        row = np.zeros([1, NUM_COLUMNS])
        row[0, [INPUT_SECS, EXCHANGE_SECS]] = self._waits.numpy()
        row[0, INPUT_SECS] += self._input_secs
        row[0, SECS_IN_STEPS] = self._secs_in_steps
        return row

    def take_numbers(self) -> dict[str, float]:
        """Returns what else there is to say since it was last asked, by tags; here nothing."""
        return {}

    def add_call(self, secs: float) -> None:
        """Counts the seconds of a call of some steps."""
        self._secs_in_steps += secs

    def of_input(self, read: Callable):
        """Returns what `read()` gives, a batch; counts how long that takes. Traced, or eager."""
        if not self._is_on:
            return read()
        if tf.executing_eagerly():
            start = time.perf_counter()
            batch = read()
            self._input_secs += time.perf_counter() - start
            return batch
        start, batch = timed_read(read)
        self._waits.assign_add([stamp_after(batch) - start, 0.0])
        return batch

    def of_exchange(self, exchange: Callable, tensors: list):
        """Returns `exchange(tensors)`, which waits for other replicas; counts how long it takes.

        Traced in the replica context of this worker's first replica.
        """
        if not self._is_on:
            return exchange(tensors)
        start = stamp_after(tensors)
        exchanged = exchange(tensors)
        with tf.device("CPU:0"):
            self._waits.assign_add([0.0, stamp_after(exchanged) - start])
        return exchanged


def has_clock() -> bool:
    """Whether TensorFlow reads the clock: not where `enable_op_determinism` was called."""
    return not runtime.is_deterministic()


def timed_read(read: Callable) -> tuple:
    """Returns the time at which `read()` begins, and what it gives."""
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        return start, read()


def stamp_after(tensors: Any):
    """Returns the time at which tensors are there: float64 scalar, in seconds."""
    with tf.device("CPU:0"), tf.control_dependencies(tensors_in(tensors)):
        return tf.timestamp()


def tensors_in(values: Any) -> list[tf.Tensor]:
    """Returns the tensors of a structure, those of ragged tensors and distributed values too."""
    leaves = tf.nest.flatten(values, expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
