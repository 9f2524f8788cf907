"""The rate between two looks, by a clock that the test moves."""

import dataclasses
import types
from typing import Any, cast

import numpy as np
import pytest

import kerasdist
from kerasdist.training.context import running_call
from kerasdist.training.report.rate_meter import Rate, RateMeter
from kerasdist.training.report.worker_share import WorkerShare
from kerasdist.training.step import step_times
from tests.clock import Clock


class Training:
    """A model with a train function that has done what a test says."""

    def __init__(self):
        self.clock = Clock()
        self.distribute_strategy = kerasdist.make_strategy()
        self.times = np.zeros([1, step_times.NUM_COLUMNS])
        self.train_function = types.SimpleNamespace(
            num_examples=0,
            times=types.SimpleNamespace(read=self.times.copy),
            num_dropped=np.zeros([0], np.int64),
        )
        self.meter = RateMeter(cast(Any, self), clock=self.clock)
        self.batch = -1

    def step(self, secs=1.0, *, inside=1.0, waits=0.0):
        """Makes a step of 4 examples that takes some seconds, and some of them in its call."""
        self.clock.secs += secs
        self.batch += 1
        self.times[0, step_times.SECS_IN_STEPS] += inside
        self.times[0, step_times.INPUT_SECS] += waits
        self.train_function.num_examples += 4
        self.meter.advance(self.batch)


@pytest.fixture
def training():
    training = Training()
    training.step(secs=100)  # Which is compiled.
    return training


def test_nothing_is_known_before_there_is_a_step(training):
    assert RateMeter(training, clock=training.clock).look() is None
    assert training.meter.look() is None


def test_steps_examples_and_seconds(training):
    training.step(secs=1.0)
    training.step(secs=3.0)

    rate = training.meter.look()
    assert (rate.num_steps, rate.num_examples, rate.secs) == (2, 8, 4.0)
    assert (rate.examples_per_second, rate.ms_per_step) == (2.0, 2000.0)
    assert training.meter.look() is None


def test_steps_whose_examples_were_counted_before_wait_for_the_next_ones(training):
    training.step()
    training.train_function.num_examples += 4  # Of a worker that runs ahead.
    training.meter.look()

    training.train_function.num_examples -= 4
    training.step()
    assert training.meter.look() is None

    training.step()
    rate = training.meter.look()
    assert (rate.num_steps, rate.num_examples, rate.secs) == (2, 4, 2.0)


def test_where_the_time_goes(training):
    training.step(secs=4.0, inside=3.0, waits=1.0)

    (share,) = training.meter.look_at_all().workers
    assert (share.name, share.input, share.exchange, share.idle) == ("", 0.25, 0.0, 0.25)
    assert share.compute == 0.5


def test_what_lies_between_two_epochs_is_left_out(training):
    training.step()
    training.clock.secs += 50
    training.meter.begin_epoch()
    training.batch = -1
    training.step()

    assert training.meter.look().secs == 2.0


def test_steps_that_a_profiler_records_are_left_out(training):
    with running_call.entered("fit", training):
        training.meter = RateMeter(training, clock=training.clock)
        training.step()
        running_call.set_recorded(training, True)
        training.step(secs=9.0)
        running_call.set_recorded(training, False)
        training.step()

        rate = training.meter.look()
    assert rate is not None
    assert (rate.num_steps, rate.secs) == (1, 1.0)


def test_a_rate_is_known_without_a_clock_in_the_steps(training):
    training.train_function.times.read = training.times[:0].copy
    training.meter.restart()
    training.step(secs=2.0)

    rate = training.meter.look_at_all()
    assert (rate.examples_per_second, rate.input_share, rate.workers) == (2.0, 0.0, ())


def test_the_input_of_a_worker_that_others_do_not_wait_for_counts_little():
    workers = (
        WorkerShare("worker 0", 0.1, 0.0, 0.0, steps_per_second=9.0),
        WorkerShare("worker 1", 0.9, 0.0, 0.0, steps_per_second=1.0, dropped=0.8),
    )
    rate = Rate(num_steps=10, num_examples=40, secs=1.0, workers=workers)
    assert rate.input_share == pytest.approx(0.18)

    awaited = dataclasses.replace(workers[1], dropped=0.0)
    rate = dataclasses.replace(rate, workers=(workers[0], awaited))
    assert rate.input_share == pytest.approx(0.5)
