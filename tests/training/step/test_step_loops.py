"""Loops of steps in a graph: how many they run, with which batches."""

from typing import Any

import pytest
import tensorflow as tf

from kerasdist.training.step import step_loops


class Seen:
    """Notes what the steps of a loop have been run with."""

    def __init__(self):
        self._values: Any = tf.Variable(tf.zeros([0], tf.int64), shape=[None])

    def run(self, value):
        self._values.assign(tf.concat([self._values, [value]], axis=0))
        return 1

    @property
    def values(self):
        return self._values.numpy().tolist()


def test_it_runs_exactly_so_many_steps():
    seen, data = Seen(), iter(tf.data.Dataset.range(5))

    @tf.function
    def run(iterator, num_steps):
        return step_loops.exactly(num_steps, next_batch=lambda: next(iterator), run_step=seen.run)

    assert run(data, tf.constant(3)) == 3
    assert seen.values == [0, 1, 2]
    assert next(data) == 3


@pytest.mark.parametrize(("num_steps", "num_taken"), [(2, 2), (5, 5), (9, 5)])
def test_it_stops_where_the_data_ends(num_steps, num_taken):
    seen = Seen()

    @tf.function
    def run(iterator, num_steps):
        def read():
            batch = iterator.get_next_as_optional()
            return batch, batch.has_value()

        return step_loops.while_there_is_data(num_steps, next_batch=read, run_step=seen.run)

    assert run(iter(tf.data.Dataset.range(5)), tf.constant(num_steps)) == num_taken
    assert seen.values == list(range(num_taken))


@pytest.mark.parametrize(
    ("num_steps", "num_taken", "next_size"), [(1, 1, 20), (2, 2, 10), (9, 3, 0)]
)
def test_it_stops_where_no_worker_has_data(num_steps, num_taken, next_size):
    seen = Seen()
    # Of each step: its batch, and the examples of the next one.
    data = tf.data.Dataset.from_tensor_slices(([7, 8, 9], [20, 10, 0]))

    def run_step(batch, next_size, *, size):
        seen.run(tf.cast(batch, tf.int64) * 100 + size)
        return tf.cast(next_size, tf.int64)

    @tf.function
    def run(iterator, num_steps, size):
        return step_loops.of_own_batches(
            num_steps, size, next_batch=lambda: next(iterator), run_step=run_step
        )

    taken, size = run(iter(data), tf.constant(num_steps), tf.constant(30, tf.int64))

    assert (taken, size) == (num_taken, next_size)
    assert seen.values == [730, 820, 910][:num_taken]
