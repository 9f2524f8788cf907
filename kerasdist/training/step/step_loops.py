"""Several steps in one call, as loops in a graph: each reads a batch and runs a step with it.

Functions that return something are compiled as Keras' are: TensorFlow leaves out what is of no use
in those without outputs, and then writes sums in another order.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def exactly(num_steps: tf.Tensor, *, next_batch: Callable, run_step: Callable):
    """Runs so many steps, for which there is data; returns how many.

    Args:
        num_steps: int32 scalar.
        next_batch: Returns a batch.
        run_step: Runs a step with it.
    """

    def body(step: Any):
        run_step(next_batch())
        return step + 1

    (num_taken,) = tf.while_loop(lambda step: step < num_steps, body, [0], parallel_iterations=1)
    return num_taken


def while_there_is_data(num_steps: tf.Tensor, *, next_batch: Callable, run_step: Callable):
    """Runs at most so many steps, of data that may end before; returns how many there were.

    Args:
        num_steps: int32 scalar.
        next_batch: Returns an optional batch, and whether it has a value: a bool scalar.
        run_step: Runs a step with a batch; returns an int32 scalar.
    """

    def body(step: Any, _):
        batch, has_value = next_batch()
        tf.cond(has_value, lambda: run_step(batch.get_value()), lambda: 0)
        return step + tf.cast(has_value, tf.int32), has_value

    num_taken, _ = tf.while_loop(
        lambda step, has_value: has_value & (step < num_steps),
        body,
        [0, True],
        parallel_iterations=1,
    )
    return num_taken


def of_own_batches(
    num_steps: tf.Tensor, size: tf.Tensor, *, next_batch: Callable, run_step: Callable
):
    """Runs at most so many steps, until no worker has data; returns how many, and the next size.

    Args:
        num_steps: int32 scalar.
        size: int64 scalar, the examples of all workers in the first of them; 0 if there are none.
        next_batch: Returns the arguments of `run_step` for this worker.
        run_step: Is called with `size=`, too; returns the size of the next step.
    """

    def body(step: Any, size: Any):
        return step + 1, run_step(*next_batch(), size=size)

    return tf.while_loop(
        lambda step, size: (step < num_steps) & (size > 0),
        body,
        [0, size],
        parallel_iterations=1,
    )
