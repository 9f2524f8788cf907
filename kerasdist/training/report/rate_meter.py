"""Measures how fast the steps are, and what they wait for."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers, running_call, traits
from kerasdist.training.report.update_counter import StepCounter
from kerasdist.training.report.worker_share import WorkerShare
from kerasdist.training.step import step_times


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """What happened since the last measurement.

    Attributes:
        num_steps: Steps.
        num_examples: Examples, over all workers.
        secs: Seconds, without those that were left out.
        workers: Where the time went, for each worker that this task knows: itself or, with
            parameter servers, all of them. Empty if TensorFlow reads no clock.
    """

    num_steps: int
    num_examples: int
    secs: float
    workers: tuple[WorkerShare, ...]

    @property
    def examples_per_second(self) -> float:
        """Examples per second, over all workers."""
        return self.num_examples / max(self.secs, 1e-9)

    @property
    def ms_per_step(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.secs / max(self.num_steps, 1)

    @property
    def input_share(self) -> float:
        """The share of the time that is a wait for batches, from 0 to 1.

        A worker for which others need not wait counts as its steps do.
        """
        if not any(each.dropped for each in self.workers):
            return sum(each.input for each in self.workers) / max(len(self.workers), 1)
        steps = sum(each.steps_per_second for each in self.workers)
        return sum(each.input * each.steps_per_second for each in self.workers) / max(steps, 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What the steps of a `fit` have measured by a moment: numbers that only grow.

    Attributes:
        secs: The time, in seconds.
        num_examples: Examples, over all workers.
        times: As `StepTimes.read`.
        num_dropped: As `TrainFunction.num_dropped`.
    """

    secs: float
    num_examples: int
    times: np.ndarray
    num_dropped: np.ndarray

    @classmethod
    def of(cls, step: Any, secs: float) -> "Reading":
        """Returns that of a train function at this moment, which is so many seconds."""
        return cls(secs, int(step.num_examples), step.times.read(), step.num_dropped.copy())


class LeftOut:
    """The steps of a `fit` whose time does not count: a profiler records or compiles them.

    Args:
        training: The call of `fit`; None leaves nothing out.
    """

    def __init__(self, training: running_call.RunningCall | None):
        self._training, self._num_left_out = training, 0

    def is_last_step(self) -> bool:
        """Whether the step that has just ended is one; to be asked after each."""
        if self._training is None:
            return False
        before, self._num_left_out = self._num_left_out, self._training.num_left_out
        return self._training.is_recorded or self._training.num_left_out > before


class RateMeter:
    """Measures a `fit`, except for compilation, steps that a profiler records, and validation.

    Args:
        model: Whose `fit` has begun.
        clock: Returns seconds.
    """

    def __init__(self, model: keras.Model, *, clock: Callable[[], float] = time.perf_counter):
        self._model, self._clock = model, clock
        self._strategy = model.distribute_strategy
        self._exceptions = LeftOut(running_call.training_of(model))
        self._since: Reading | None = None
        self._left_out, self._stepped_at = 0.0, 0.0
        self._num_steps = 0
        self._steps = StepCounter(model)

    def advance(self, batch: int) -> None:
        """Notes the end of a call of `fit` whose last step is `batch` of its epoch, from 0."""
        num_new, self._stepped_at = self._steps.advance(batch), self._clock()
        if self._since is None or self._exceptions.is_last_step():
            self.restart()
        else:
            self._num_steps += num_new

    def restart(self) -> None:
        """Forgets what was measured: the next measurement begins here."""
        self._restart_at(self._read())

    def _restart_at(self, now: Reading) -> None:
        self._since, self._num_steps, self._left_out = now, 0, 0.0

    def begin_epoch(self) -> None:
        """Leaves out the time since the last step: that of validation and of callbacks."""
        if self._since is not None:
            self._left_out += self._clock() - self._stepped_at

    def look(self) -> Rate | None:
        """Returns what was measured since the last look; None if there was no step.

        Nor is there anything to tell where the examples of these steps were counted before: workers
        that are asynchronous run ahead of the steps that `fit` has counted.
        """
        if self._since is None or not self._num_steps:
            return None
        now = self._read()
        counted = dataclasses.replace(now, secs=now.secs - self._left_out)
        rate = rate_between(self._since, counted, self._num_steps, self._strategy)
        if rate is not None:
            self._restart_at(now)
        return rate

    def look_at_all(self) -> Rate | None:
        """Returns the same with all workers in it. All of them must call it, at the same step."""
        rate, num_workers = self.look(), peers.count(self._strategy)
        if num_workers == 1:
            return rate
        rows = np.zeros([num_workers, len(WorkerShare.NUMBERS)])
        if rate is not None and rate.workers:
            rows[peers.index_of(self._strategy)] = rate.workers[0].numbers
        rows = peers.sum_over(self._strategy, rows)
        if rate is None or not rate.workers:
            return rate
        workers = (WorkerShare(f"worker {index}", *row) for index, row in enumerate(rows))
        return dataclasses.replace(rate, workers=tuple(workers))

    def _read(self) -> Reading:
        return Reading.of(self._model.train_function, self._stepped_at)


def rate_between(
    before: Reading, after: Reading, num_steps: int, strategy: tf.distribute.Strategy
) -> Rate | None:
    """Returns what happened between two readings; None if no example was counted.

    Args:
        before: The earlier reading.
        after: The later one.
        num_steps: The steps between them.
        strategy: Of the model that makes them.
    """
    num_examples = after.num_examples - before.num_examples
    if not num_examples:
        return None
    return Rate(
        num_steps=num_steps,
        num_examples=num_examples,
        secs=after.secs - before.secs,
        workers=tuple(_shares(before, after, num_steps, strategy)),
    )


def _shares(
    before: Reading, after: Reading, num_steps: int, strategy: tf.distribute.Strategy
) -> Iterator[WorkerShare]:
    """Yields the shares of the time, for each worker that this task knows."""
    secs = max(after.secs - before.secs, 1e-9)
    dropped = after.num_dropped - before.num_dropped
    are_served = traits.has_remote_variables(strategy)
    for index, row in enumerate(after.times - before.times):
        own_steps = row[step_times.STEPS] if are_served else num_steps
        num_dropped = dropped[index] if len(dropped) else 0
        yield WorkerShare(
            name=f"worker {index}" if are_served else "",
            input=min(row[step_times.INPUT_SECS] / secs, 1.0),
            exchange=min(max(row[step_times.EXCHANGE_SECS], 0.0) / secs, 1.0),
            idle=max(1.0 - row[step_times.SECS_IN_STEPS] / secs, 0.0),
            steps_per_second=own_steps / secs,
            examples_per_second=row[step_times.EXAMPLES] / secs,
            staleness=row[step_times.STALENESS] / max(own_steps, 1.0),
            dropped=min(num_dropped / max(own_steps, 1.0), 1.0),
        )
