"""The steps of calls; and when a look is due, of a model whose number of updates the test sets."""

import math
import types
from typing import Any, cast

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.training.context import peers, running_call
from kerasdist.training.report import update_counter
from kerasdist.training.report.update_counter import StepCounter, UpdateCounter, updates_of
from tests.clock import Clock


class Training:
    """A model whose optimizer has made so many updates as a test says."""

    def __init__(self, **when):
        self.clock = Clock()
        self.optimizer = types.SimpleNamespace(iterations=0)
        self.other = keras.optimizers.SGD()
        self.train_step = keras.Model().train_step
        self.distribute_strategy = kerasdist.make_strategy()
        self.counter = UpdateCounter(cast(Any, self), clock=self.clock, **when)
        self.batch = -1

    def call(self, num_steps=1, *, num_updates=None, secs=1.0) -> bool:
        """Makes a call of `fit`; returns whether a look is due."""
        self.clock.secs += secs
        self.batch += num_steps
        self.optimizer.iterations += num_steps if num_updates is None else num_updates
        return self.counter.advance(self.batch)


def test_a_look_at_every_so_many_updates():
    training = Training(every_steps=3)

    assert [training.call() for _ in range(7)] == [False, False, True, False, False, True, False]
    assert (training.counter.step, training.counter.next_step) == (6, 9)


def test_epochs_count_their_batches_anew():
    training = Training(every_steps=3)
    training.call()
    training.batch = -1

    assert [training.call() for _ in range(2)] == [False, True]


def test_a_look_is_never_due_before_it_may_be():
    training = Training(every_steps=4)
    foreseen, due = [], []
    for _ in range(40):  # Every third batch alone is an update.
        foreseen.append(training.counter.is_due_within(1))
        due.append(training.call(num_updates=len(due) % 3 == 2))

    assert due.count(True) == 3
    assert all(was_foreseen for was_foreseen, is_due in zip(foreseen, due, strict=True) if is_due)
    assert foreseen.count(True) < 20


@pytest.mark.parametrize(("num_steps", "may_be_due"), [(2, False), (3, True), (5, True)])
def test_calls_of_several_steps(num_steps, may_be_due):
    training = Training(every_steps=5)
    training.call(2)

    assert training.counter.is_due_within(num_steps) == may_be_due
    assert training.call(num_steps) == may_be_due


def test_several_updates_in_a_step():
    training = Training(every_steps=6)

    assert [training.call(num_updates=2) for _ in range(7)] == [False, False, True] * 2 + [False]
    assert (training.counter.first_update, training.counter.next_step) == (17, 18)


def test_an_optimizer_that_nobody_uses_does_not_count():
    training = Training(every_steps=3)
    training.other.iterations.assign(5)

    assert updates_of(cast(Any, training)) == 5
    training.optimizer.iterations = 7
    assert updates_of(cast(Any, training)) == 7


def test_a_look_every_so_many_seconds():
    training = Training(every_secs=30.0)
    due = [training.call(secs=1.0) for _ in range(70)]

    # After the first step it knows how long they take.
    assert [index + 1 for index, is_due in enumerate(due) if is_due] == [30, 60]


@pytest.mark.parametrize(("num_workers", "most"), [(1, 2), (2, 50)])
def test_a_look_is_few_steps_late_when_steps_become_slower(num_workers, most, monkeypatch):
    monkeypatch.setattr(peers, "count", lambda strategy: num_workers)
    monkeypatch.setattr(peers, "sum_over", lambda strategy, rows: num_workers * np.array(rows))
    training = Training(every_secs=30.0)
    foreseen, due = [], []
    for secs in [0.01] * 1500 + [30.0] * 60:
        foreseen.append(training.counter.is_due_within(1))
        due.append(training.call(secs=secs))

    first = due.index(True) + 1
    assert 1500 < first <= 1500 + most
    assert all(due[first + 10 :])  # It has measured how long they take now.
    assert all(was_foreseen for was_foreseen, is_due in zip(foreseen, due, strict=True) if is_due)


def test_the_first_look_waits_for_no_number_of_steps():
    training = Training(every_secs=5.0)

    due = [training.call(secs=secs) for secs in (9.0, 2.0, 3.0, 1.0)]

    assert due == [True, False, False, True]


def test_the_updates_are_read_at_looks_alone(monkeypatch):
    training = Training(every_secs=30.0)
    read = []
    monkeypatch.setattr(
        update_counter, "updates_of", lambda model: read.append(1) or model.optimizer.iterations
    )
    due = [training.call(secs=1.0) for _ in range(70)]

    assert len(read) == due.count(True) + 1


def test_a_look_in_endless_time_is_none():
    training = Training(every_secs=math.inf)

    assert not any(training.call(secs=1.0) for _ in range(70))


def test_a_call_has_the_steps_since_the_one_before():
    counter = StepCounter(cast(Any, object()))

    assert [counter.advance(batch) for batch in (0, 1, 4, 6)] == [1, 1, 3, 2]


def test_an_epoch_begins_anew():
    counter = StepCounter(cast(Any, object()))

    assert [counter.advance(batch) for batch in (4, 2, 4, 4)] == [5, 3, 2, 5]


def test_the_last_call_of_an_epoch_has_the_steps_that_there_were_batches_for():
    model: Any = object()
    seen = []
    counter = StepCounter(model)

    with running_call.entered("fit", model):
        for num_made, reported in [(3, 2), (6, 5), (8, 8), (3, 2)]:
            running_call.note_steps(num_made)
            seen.append(counter.advance(reported))

    assert seen == [3, 3, 2, 3]
