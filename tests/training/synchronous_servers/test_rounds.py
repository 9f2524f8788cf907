"""Tokens of synchronous workers, and updates of the first batches; with threads for workers."""

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.synchronous_servers import round_state
from kerasdist.training.synchronous_servers.contributions import Contributions, How, Value
from kerasdist.training.synchronous_servers.rounds import Rounds

DEVICE = "/device:CPU:0"


class Training:
    """A weight that moves by the mean of what batches give: position + weight / 8."""

    def __init__(self, *, num_workers, num_to_aggregate, contribute=None, num_batches=None):
        self.num_to_aggregate, self.num_workers = num_to_aggregate, num_workers
        self.rounds = Rounds(
            num_seats=num_workers, num_to_aggregate=num_to_aggregate, device=DEVICE
        )
        self.contributions = Contributions(home=self.rounds.device)
        with tf.device(DEVICE):
            self.weight: Any = tf.Variable([0.0], trainable=False)
        self.contribute, self.num_batches = contribute, num_batches
        self.queues = [self.rounds.new_queue() for _ in range(num_workers)]
        self.state = self.rounds.first_state()
        self.threads, self.kinds, self.log, self.seats = [], [], [], []
        number = tf.TensorSpec([], tf.int64)
        # A worker is traced first: an update is made of what it stages.
        work = graph_function(self._work_on).get_concrete_function
        self._work = work(number, number, number)
        self._updates = graph_function(self._make_updates)

    def _work_on(self, tokens, seat, incarnation):
        def staged(key, position, kind, read, memory):
            held = tf.where(tf.equal(kind, round_state.AGAIN), memory[0], position)
            gradient = tf.cast(held, tf.float32) + self.weight.read_value() / 8
            note = tf.py_function(lambda *each: self.kinds.append(each), [held, kind], [])
            if self.contribute is not None:
                gradient = self.contribute(gradient, position, seat)
            value = Value(gradient, How.MEAN, beside=self.weight)
            ended, parcel = self.contributions.stage(key, [value], weight=1, num_examples=1)
            has_batch = self.num_batches is None or position < self.num_batches
            return [*ended, note], parcel, has_batch, [held]

        memory = [tf.constant(-1, tf.int64)], [tf.TensorSpec([], tf.int64)]
        self.rounds.work(tokens, seat, incarnation, staged, memory=memory)

    def _make_updates(self, number, num_updates, vector, said, *queues):
        def update(keys):
            (gradient,) = self.contributions.take(keys).values
            with tf.device(DEVICE):
                self.weight.assign_sub(gradient)

        return self.rounds.updates(
            num_updates,
            vector,
            said,
            queues,
            num_to_aggregate=number,
            update=update,
            drop=self.contributions.drop,
        )

    def value(self):
        return float(self.weight.numpy()[0])

    def seat(self, seat, incarnation=0):
        """Lets a worker take a seat."""
        tokens = self.rounds.number_of(self.queues[seat])
        arguments = map(np.int64, (tokens, seat, incarnation))
        thread = threading.Thread(target=self._work, args=arguments)
        thread.start()
        self.threads.append(thread)

    @contextlib.contextmanager
    def workers(self):
        for seat in range(self.num_workers):
            self.seat(seat)
        try:
            yield
        finally:
            for queue in self.queues:
                self.rounds.stop(queue)
            for thread in self.threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads)

    def begin(self, first, end):
        self.state.numbers[[round_state.POSITION, round_state.END]] = first, end

    def updates(self, num_updates, number=None):
        """Makes updates; returns how many there are, and the positions of each."""
        number = number or self.num_to_aggregate
        vector = tf.constant(self.state.vector())
        found = self._updates(number, np.int64(num_updates), vector, self.rounds.said, *self.queues)
        num_made, self.state, log = self.rounds.result_of(found.numpy(), number)
        self.log += log[..., 0].tolist()
        self.seats += log[..., 1].tolist()
        return num_made

    @property
    def num_stale(self):
        return self.state.seats[:, round_state.NUM_STALE]


def replayed(positions):
    weight = np.float32(0)
    for batches in np.asarray(positions):
        weight -= np.mean(np.float32(batches) + weight / 8, dtype=np.float32)
    return weight


@pytest.mark.parametrize(("num_workers", "num_to_aggregate"), [(1, 1), (2, 2), (3, 3), (2, 5)])
def test_an_update_has_the_next_batches_where_all_are_aggregated(num_workers, num_to_aggregate):
    training = Training(num_workers=num_workers, num_to_aggregate=num_to_aggregate)
    training.begin(first=10, end=10 + 6 * num_to_aggregate)

    with training.workers():
        assert training.updates(4) == 4
        assert training.updates(2) == 2

    np.testing.assert_array_equal(np.ravel(training.log), 10 + np.arange(6 * num_to_aggregate))
    np.testing.assert_allclose(training.value(), replayed(training.log), rtol=1e-6)
    assert not training.num_stale.any() and training.state.num_left == 0
    assert training.contributions.count() == 0


def test_a_worker_that_is_expected_has_its_batch_when_it_comes():
    training = Training(num_workers=2, num_to_aggregate=2)
    training.begin(first=0, end=6)
    training.state.expect_all()
    found = []

    update = threading.Thread(target=lambda: found.append(training.updates(1)))
    update.start()
    with training.workers():  # The second one comes when the first could have taken both batches.
        update.join(60)
        assert found == [1]
        assert training.updates(2) == 2

    np.testing.assert_array_equal(training.log, [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(training.seats, [[0, 1]] * 3)


def test_the_first_batches_make_the_update_and_late_ones_are_computed_again():
    has_begun, is_late = threading.Event(), threading.Event()

    def wait_with_one_batch(gradient, position, _):
        def wait(position):
            if position == 2:
                has_begun.set()
                is_late.wait(30)

        with tf.control_dependencies([tf.py_function(wait, [position], [])]):
            return tf.identity(gradient)

    training = Training(num_workers=3, num_to_aggregate=2, contribute=wait_with_one_batch)
    training.begin(first=0, end=20)
    with training.workers():
        training.updates(5)
        assert has_begun.wait(30)
        first = list(training.log)
        is_late.set()
        training.updates(5)

    assert sorted(np.ravel(training.log)) == list(range(20))  # Each of them once.
    np.testing.assert_allclose(training.value(), replayed(training.log), rtol=1e-5)
    assert 2 not in np.ravel(first) and training.num_stale.sum() >= 1
    # Its worker has kept the batch, and needs not read it again.
    assert (2, round_state.AGAIN) in [tuple(map(int, each)) for each in training.kinds]
    assert training.contributions.count() == 0


def test_an_interruption_ends_the_wait_for_workers():
    training = Training(num_workers=2, num_to_aggregate=2)
    training.begin(first=0, end=8)  # No worker takes a seat.

    timer = threading.Timer(0.2, training.rounds.interrupt)
    timer.start()
    assert training.updates(3) == 0
    timer.join()

    assert training.state.num_left == 8


@pytest.mark.parametrize("num_to_aggregate", [2, 3])
def test_workers_that_are_left_make_the_updates_until_another_one_takes_the_seat(num_to_aggregate):
    is_lost, is_over = threading.Event(), threading.Event()

    def lose(gradient, position, seat):
        def wait(position, seat):
            if (position, seat) == (4, 1):
                is_lost.set()
                is_over.wait(30)

        with tf.control_dependencies([tf.py_function(wait, [position, seat], [])]):
            return tf.identity(gradient)

    training = Training(num_workers=2, num_to_aggregate=num_to_aggregate, contribute=lose)
    training.state.numbers[round_state.LOST_KIND] = round_state.SENT
    training.begin(first=4, end=4 + 12)
    with training.workers():
        # Who is first has position 4: let it be the one that will be lost.
        training.state.seats[0, round_state.STATUS] = round_state.ABSENT
        waits = threading.Thread(target=lambda: (is_lost.wait(5), training.rounds.interrupt()))
        waits.start()
        num_made = training.updates(12 // num_to_aggregate)
        waits.join()
        if is_lost.is_set():
            old, training.queues[1] = training.queues[1], training.rounds.new_queue()
            training.rounds.stop(old)
            training.state.free(1, incarnation=1)
            assert training.state.again == [4]
            num_made += training.updates(1)  # By one worker alone.
            training.seat(1, incarnation=1)
        is_over.set()  # It comes back, and is not heard.
        num_made += training.updates(12 // num_to_aggregate - num_made)

    assert num_made == 12 // num_to_aggregate
    np.testing.assert_array_equal(np.ravel(training.log), 4 + np.arange(12))
    np.testing.assert_allclose(training.value(), replayed(training.log), rtol=1e-5)
    if is_lost.is_set():
        assert (4, round_state.SENT) in [tuple(map(int, each)) for each in training.kinds]


def test_data_ends_where_a_worker_finds_no_batch():
    training = Training(num_workers=2, num_to_aggregate=2, num_batches=5)
    training.begin(first=0, end=round_state.UNKNOWN_END)

    with training.workers():
        assert training.updates(9) == 2
        assert training.state.num_left == 1
        assert training.updates(1, number=1) == 1

    assert training.log == [[0, 1], [2, 3], [4]]
    assert training.state.num_left == 0
