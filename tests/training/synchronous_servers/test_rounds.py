"""Tokens of synchronous workers, and updates of the first batches; with threads for workers."""

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.synchronous_servers.contributions import Contributions, How, Value
from kerasdist.training.synchronous_servers.rounds import Progress, Rounds

DEVICE = "/device:CPU:0"


class Training:
    """A weight that moves by the mean of what batches give: position + weight / 8."""

    def __init__(self, *, num_workers, num_to_aggregate, contribute=None):
        self.num_to_aggregate = num_to_aggregate
        self.rounds = Rounds(num_seats=num_workers, device=DEVICE)
        self.contributions = Contributions()
        with tf.device(DEVICE):
            self.weight: Any = tf.Variable([0.0], trainable=False)
        self.num_workers, self.contribute = num_workers, contribute
        # A worker is traced first: an update is made of what it stages.
        work = graph_function(self._work_on).get_concrete_function
        self._work = work(*[tf.TensorSpec([], tf.int64)] * 2)
        self._begin = graph_function(self._give_first)
        self._updates = graph_function(self._make_updates)

    def _work_on(self, seat, number):
        def staged(key, position):
            gradient = tf.cast(position, tf.float32) + self.weight.read_value() / 8
            if self.contribute is not None:
                gradient = self.contribute(gradient, position)
            value = Value(gradient, How.MEAN, beside=self.weight)
            return self.contributions.stage(key, [value], weight=1, num_examples=1)

        self.rounds.work(seat, number, staged)

    def _give_first(self, progress):
        return self.rounds.begin(progress, self.num_to_aggregate)

    def _make_updates(self, num_updates, progress):
        def update(keys):
            (gradient,) = self.contributions.take(keys).values
            with tf.device(DEVICE):
                self.weight.assign_sub(gradient)

        result = self.rounds.updates(
            num_updates,
            progress,
            num_to_aggregate=self.num_to_aggregate,
            update=update,
            drop=self.contributions.drop,
        )
        return result.num_made, result.progress, result.positions, result.num_dropped

    def value(self):
        return float(self.weight.numpy()[0])

    @contextlib.contextmanager
    def workers(self):
        threads = [
            threading.Thread(
                target=self._work, args=(tf.constant(seat, tf.int64), tf.constant(0, tf.int64))
            )
            for seat in range(self.num_workers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.rounds.end(tf.constant(0, tf.int64))
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)

    def begin(self, first, end):
        return self._begin(
            Progress(*(tf.constant(each, tf.int64) for each in (0, first, end, 0, 0)))
        )

    def updates(self, num_updates, progress):
        return self._updates(tf.constant(num_updates, tf.int64), progress)


def replayed(positions):
    weight = np.float32(0)
    for batches in np.asarray(positions):
        weight -= np.mean(np.float32(batches) + weight / 8, dtype=np.float32)
    return weight


@pytest.mark.parametrize(("num_workers", "num_to_aggregate"), [(1, 1), (2, 2), (3, 3), (2, 5)])
def test_an_update_has_the_next_batches_where_all_are_aggregated(num_workers, num_to_aggregate):
    training = Training(num_workers=num_workers, num_to_aggregate=num_to_aggregate)

    with training.workers():
        progress = training.begin(first=10, end=10 + 6 * num_to_aggregate)
        num_made, progress, first, _ = training.updates(4, progress)
        _, progress, second, num_dropped = training.updates(2, progress)

    positions = np.concatenate([first, second])
    assert int(num_made) == 4 and int(progress.update) == 6
    np.testing.assert_array_equal(positions.ravel(), 10 + np.arange(6 * num_to_aggregate))
    np.testing.assert_allclose(training.value(), replayed(positions), rtol=1e-6)
    assert not np.any(num_dropped)
    assert training.contributions.count() == 0


def test_the_first_batches_make_the_update_and_late_ones_are_computed_again():
    has_begun, is_late = threading.Event(), threading.Event()

    def wait_with_one_batch(gradient, position):
        def wait(position):
            if position == 2:
                has_begun.set()
                is_late.wait(30)

        with tf.control_dependencies([tf.py_function(wait, [position], [])]):
            return tf.identity(gradient)

    training = Training(num_workers=3, num_to_aggregate=2, contribute=wait_with_one_batch)
    with training.workers():
        progress = training.begin(first=0, end=20)
        assert has_begun.wait(30)
        _, progress, first, _ = training.updates(5, progress)
        is_late.set()
        _, progress, second, num_dropped = training.updates(5, progress)

    positions = np.concatenate([first, second])
    np.testing.assert_array_equal(np.sort(positions.ravel()), np.arange(20))  # Each of them once.
    np.testing.assert_allclose(training.value(), replayed(positions), rtol=1e-5)
    assert 2 not in first.numpy() and sum(num_dropped.numpy()) >= 1
    assert training.contributions.count() == 0


def test_an_interruption_ends_the_wait_for_workers():
    training = Training(num_workers=2, num_to_aggregate=2)
    progress = training.begin(first=0, end=8)  # No worker takes a token.

    timer = threading.Timer(0.2, training.rounds.interrupt)
    timer.start()
    num_made, *_ = training.updates(3, progress)
    timer.join()

    assert int(num_made) == 0


def test_a_worker_of_an_older_round_puts_back_what_it_takes_and_is_not_heard():
    training = Training(num_workers=1, num_to_aggregate=1)
    seat, round_of_others = tf.constant(0, tf.int64), tf.constant(7, tf.int64)

    progress = training.begin(first=0, end=2)
    training._work(seat, round_of_others)  # It ends at once.
    with training.workers():
        num_made, _, positions, _ = training.updates(2, progress)

    assert int(num_made) == 2
    np.testing.assert_array_equal(positions, [[0], [1]])


def test_tokens_and_answers_are_taken_back():
    training = Training(num_workers=2, num_to_aggregate=2)
    training.begin(first=5, end=8)
    training.rounds.interrupt()

    training.rounds.clear()

    with training.workers():
        *_, positions, _ = training.updates(1, training.begin(first=0, end=2))
    np.testing.assert_array_equal(positions, [[0, 1]])
