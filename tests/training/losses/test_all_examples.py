"""Replicas show each other their rows; the gradient of what comes of all goes to one's own."""

from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.losses import all_examples
from kerasdist.training.replica import replicas
from kerasdist.training.step import replica_run
from tests.strategies import on_three_replicas

ROWS = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")


def product_of_sums(rows, flags):
    """A function of all rows of which no sum over parts of them is made."""
    return tf.reduce_prod(tf.reduce_sum(rows * tf.cast(flags, rows.dtype), axis=0))


def whole_gradient(batch):
    rows, flags = map(tf.constant, batch)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = product_of_sums(rows, flags)
    return value.numpy(), tape.gradient(value, rows).numpy()


def shown(strategy, batch):
    """Returns what each replica has computed from all rows, its gradient and its share."""

    @tf.function
    def run(batch):
        def step(data):
            current: Any = replicas.current()
            with tf.GradientTape() as tape:
                tape.watch(data[0])
                value = product_of_sums(
                    *all_examples.of_all(tuple(data), current, have_gradients=True)
                )
            gradient = tape.gradient(value, data[0])
            again = all_examples.of_all(tuple(data), current)  # Sent once.
            return value, gradient, current.share, again[0], current.num_examples

        return replica_run.run(strategy, step, batches.shares_of(batch, strategy)).outputs

    return tf.nest.map_structure(np.asarray, run(tuple(map(tf.constant, batch))))


@on_three_replicas
def test_values_are_equal_and_weighed_gradients_those_of_ones_own_rows(strategy):
    for size in (5, 2):  # Of two examples, the third replica has none.
        batch = ROWS[:size], np.arange(size) % 4 != 1
        batch = batch[0], batch[1][:, np.newaxis]
        value, gradient = whole_gradient(batch)
        found = []
        for other, own, share, rows, count in shown(strategy, batch):
            np.testing.assert_allclose(other, value, rtol=1e-5)
            np.testing.assert_array_equal(rows, batch[0])
            found.append(own[: int(count)] * share)
        np.testing.assert_allclose(np.concatenate(found), gradient, rtol=1e-4, atol=1e-6)
