"""How the steps of an epoch become calls on workers, by a clock that the test moves."""

import functools
import itertools
import math
import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.context import running_call
from kerasdist.training.parameter_servers.epoch_iterator import Calls, WorkerEpochIterator
from tests import strategies
from tests.clock import Clock


class Source:
    """A pass over data that workers read, or over batches that the chief reads."""

    def __init__(self, batches=None):
        self.data = types.SimpleNamespace(is_on_workers=batches is None)
        self._batches = iter(batches or ())

    def __next__(self):
        return next(self._batches)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_calls(clock):
    def make(batches=None, *, num_workers=1, first=0, num_steps=100, **arguments):
        source: Any = Source(batches)
        return Calls(
            source,
            num_workers=num_workers,
            first=first,
            num_steps=num_steps,
            clock=clock,
            **arguments,
        )

    return make


def run(calls, clock=None, secs_per_step=0.0):
    """Yields calls one after another; each ends, with all its steps, before the next begins."""
    while call := calls.take():
        yield call
        if clock:
            clock.sleep(secs_per_step * call.num_steps)
        calls.end(call, call.num_steps)


def lengths(calls, *arguments):
    return [call.num_steps for call in run(calls, *arguments)]


def test_calls_follow_each_other_from_the_first_position(make_calls):
    calls = make_calls(first=7, num_steps=10, steps_per_call=4)

    assert [(call.position, call.num_steps) for call in run(calls)] == [(7, 4), (11, 4), (15, 2)]
    assert calls.num_done == 10
    assert not calls.has_ended


# The first is not timed, for it is compiled; the second is the first that is.
@pytest.mark.parametrize(
    ("num_workers", "secs_per_step", "expected"),
    [
        (1, 0.05, [1, 1, 2, 2, 2]),
        (1, 0.01, [1, 1, 10, 10, 10]),
        (2, 0.01, [1, 1, 5, 5, 5]),
        (1, 1.0, [1, 1, 1, 1, 1]),
        (1, 1e-6, [1, 1, 1000, 1000, 1000]),
    ],
)
def test_call_takes_a_tenth_of_a_second_of_each_worker(
    make_calls, clock, num_workers, secs_per_step, expected
):
    calls = make_calls(num_workers=num_workers, num_steps=math.inf)

    assert [call.num_steps for call in itertools.islice(run(calls, clock, secs_per_step), 5)] == (
        expected
    )


def test_calls_grow_longer_where_steps_grow_faster(make_calls, clock):
    calls = make_calls(num_steps=math.inf)
    slow = [call.num_steps for call in itertools.islice(run(calls, clock, 0.1), 4)]
    fast = [call.num_steps for call in itertools.islice(run(calls, clock, 0.001), 40)]

    assert max(slow) == 1
    assert max(fast) > 10


@pytest.mark.parametrize("num_workers", [1, 3])
def test_last_calls_are_short_and_hold_what_is_left(make_calls, clock, num_workers):
    calls = make_calls(num_workers=num_workers, num_steps=400)
    found = lengths(calls, clock, 1e-6)

    assert sum(found) == 400
    # At most half of what each worker still has to do.
    left = 400 - 2
    for length in found[2:]:
        assert length == max(1, left // (2 * num_workers))
        left -= length


def test_calls_wait_while_enough_run(make_calls):
    calls = make_calls(num_workers=2, steps_per_call=1)
    running = [calls.take() for _ in range(8)]
    assert None not in running
    assert calls.take() is None

    calls.end(running[3], 1)
    assert calls.take().position == 8
    assert calls.take() is None


def test_no_call_runs_ahead_where_a_callback_may_act_between_two(make_calls):
    calls = make_calls(steps_per_call=1, runs_ahead=False)
    first = calls.take()
    assert calls.take() is None

    calls.end(first, 1)
    assert calls.take().position == 1


def test_call_that_ends_next_is_the_first_that_runs_or_is_to_run(make_calls):
    calls = make_calls(num_steps=2, steps_per_call=1)
    planned = calls.peek()
    assert calls.take() is planned
    second = calls.take()

    assert calls.peek() is planned
    calls.end(planned, 1)
    assert calls.peek() is second
    calls.end(second, 1)
    assert calls.peek() is None


def test_data_that_ends_within_a_call_ends_the_epoch(make_calls):
    calls = make_calls(num_steps=math.inf, steps_per_call=5)
    first, second = calls.take(), calls.take()
    calls.end(first, 5)
    calls.end(second, 2)

    assert calls.has_ended
    assert calls.num_done == 7
    assert calls.take() is None
    assert calls.peek() is None


def test_what_runs_when_the_data_ends_is_waited_for(make_calls):
    calls = make_calls(num_steps=math.inf, steps_per_call=5)
    first, second = calls.take(), calls.take()
    calls.end(first, 2)

    assert calls.peek() is second


def test_chief_reads_one_batch_for_each_call(make_calls):
    calls = make_calls("abc", num_steps=2, steps_per_call=5)

    assert [(call.position, call.num_steps, call.batches) for call in run(calls)] == [
        (0, 1, {0: "a"}),
        (1, 1, {1: "b"}),
    ]
    assert not calls.has_ended


def test_epoch_ends_where_the_chief_has_no_batch_left(make_calls):
    calls = make_calls("ab", num_steps=math.inf)

    assert [call.batches for call in run(calls)] == [{0: "a"}, {1: "b"}]
    assert calls.has_ended


def test_epoch_of_updates_ends_behind_its_last_batch(make_calls):
    make = functools.partial(make_calls, first=2, batches_per_step=3)

    assert make(num_steps=4, num_batches=100).end_position == 18
    assert make(num_steps=4, num_batches=17).end_position == 17
    assert make(num_steps=math.inf).end_position == math.inf


# What the chief reads for each update of two batches, of data that ends within an epoch or not.
@pytest.mark.parametrize(
    ("num_ahead", "num_steps", "expected"),
    [
        (0, 2, ["ab", "cd"]),
        (1, 2, ["abc", "d"]),
        (0, math.inf, ["ab", "cd", "e"]),
        (1, math.inf, ["abc", "de", ""]),
        (9, math.inf, ["abcde", "", ""]),
    ],
)
def test_chief_reads_what_an_update_and_backup_workers_need(
    make_calls, num_ahead, num_steps, expected
):
    calls = make_calls("abcde", num_steps=num_steps, batches_per_step=2, num_ahead=num_ahead)
    found = [call.batches for call in run(calls)]

    assert ["".join(batches.values()) for batches in found] == expected
    positions = [position for batches in found for position in batches]
    assert positions == list(range(len(positions)))
    assert calls.has_ended == (num_steps == math.inf)
    assert calls.end_position == (4 if num_steps == 2 else 5)


def test_a_data_service_in_mid_epoch_is_told():
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()  # Asked when a dataset is read, and not before.
    dataset = tf.data.Dataset.range(9).batch(3)
    served = dataset.apply(service.distribute("parallel_epochs", dispatcher.target))
    iterator = WorkerEpochIterator(
        served,
        steps_per_epoch=3,
        distribute_strategy=strategies.spanning(Cluster(jobs=jobs, task=Task("chief", 0))),
    )
    place = running_call.DataPlace(epoch=0, step=1)

    told = pytest.raises(UserWarning, match="may give it in another order than before")
    with running_call.entered("fit", keras.Model(), resume_at=place), told:
        next(iterator.calls())
