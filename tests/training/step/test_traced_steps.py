"""Loops of steps in a graph: how many they run, with which batches."""

from typing import Any

import pytest
import tensorflow as tf

from kerasdist.training.step.traced_steps import StepResult, TracedSteps


class Seen(TracedSteps):
    """Notes what the steps of a loop have been run with."""

    def __init__(self):
        self._values: Any = tf.Variable(tf.zeros([0], tf.int64), shape=[None])

    def one(self, batch):
        self._values.assign(tf.concat([self._values, [batch]], axis=0))
        return StepResult(1, None, None)

    def one_with_own_batch(self, batch, own_size, next_size, *, size):
        self.one(tf.cast(batch, tf.int64) * 100 + size)
        return tf.cast(next_size, tf.int64)

    def read(self, read):
        return read()

    @property
    def values(self):
        return self._values.numpy().tolist()


def test_it_runs_exactly_so_many_steps():
    seen, data = Seen(), iter(tf.data.Dataset.range(5))

    assert tf.function(seen.exactly)(data, tf.constant(3)) == 3
    assert seen.values == [0, 1, 2]
    assert next(data) == 3


@pytest.mark.parametrize(("num_steps", "num_taken"), [(2, 2), (5, 5), (9, 5)])
def test_it_stops_where_the_data_ends(num_steps, num_taken):
    seen, data = Seen(), iter(tf.data.Dataset.range(5))

    assert tf.function(seen.while_data)(data, tf.constant(num_steps)) == num_taken
    assert seen.values == list(range(num_taken))


@pytest.mark.parametrize(
    ("num_steps", "num_taken", "next_size"), [(1, 1, 20), (2, 2, 10), (9, 3, 0)]
)
def test_it_stops_where_no_worker_has_data(num_steps, num_taken, next_size):
    seen = Seen()
    # Of each step: its batch, how many examples it has, and those of the next one.
    data = tf.data.Dataset.from_tensor_slices(([7, 8, 9], [1, 1, 1], [20, 10, 0]))
    run: Any = tf.function(seen.with_own_batches)

    taken, size = run(iter(data), tf.constant(num_steps), tf.constant(30, tf.int64))

    assert (taken, size) == (num_taken, next_size)
    assert seen.values == [730, 820, 910][:num_taken]
