"""The numbers of a `fit` for whoever reads the state of this task from outside.

The steps only count themselves and read a clock. All else is computed when somebody reads, in the
reader's thread.
"""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from kerasdist.status.number import Number
from kerasdist.status.task_status import TaskStatus
from kerasdist.training.context import deployment, running_call, traits
from kerasdist.training.hooks.lazy_logs import LazyLogs
from kerasdist.training.report.progress_bar import MOST_EPOCHS
from kerasdist.training.report.rate_meter import LeftOut, Rate, Reading, rate_between
from kerasdist.training.report.update_counter import StepCounter, updates_of

# Of the time over which rates are means; more if nobody has read meanwhile.
_LEAST_SECS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Counts:
    """What the steps count: it is replaced as a whole, since another thread reads it.

    Attributes:
        num_steps: Steps since `fit` began.
        num_timed: Those of them whose time is known: not the first one, and none that is left out.
        secs: Seconds that these took.
        stepped_at: When the last step ended, or the epoch began since.
        step_of_epoch: Steps of the epoch, with those that a resumed `fit` does not make.
    """

    num_steps: int = 0
    num_timed: int = 0
    secs: float = 0.0
    stepped_at: float = 0.0
    step_of_epoch: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Moment:
    """What was known when somebody has read.

    Attributes:
        at: The time, in seconds.
        step: The train function, which counts for itself.
        reading: What it has measured.
        counts: What the steps had counted.
    """

    at: float
    step: Any
    reading: Reading
    counts: _Counts


class StatusFeed(keras.callbacks.Callback):
    """Gives the numbers of a `fit`; it has no hook for each batch, which would cost time.

    Args:
        status: Who is asked for them.
        clock: Returns seconds.
    """

    def __init__(self, status: TaskStatus, *, clock: Callable[[], float] = time.perf_counter):
        super().__init__()
        self._status, self._clock = status, clock
        self._is_read = self._wants_logs = False
        self._counts, self._epoch = _Counts(), 0
        self._logs: dict[str, Any] = {}
        self._moments: collections.deque[_Moment] = collections.deque()
        self._rate: Rate | None = None
        self._step: Any = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._is_read = self._status.is_watched and not self._status.is_training
        if not self._is_read:  # As that of a `fit` inside of another one.
            return
        self._steps = StepCounter(self.model)
        self._left_out = LeftOut(running_call.training_of(self.model))
        self._began_at = self._clock()
        self._before = self._status.past_steps, self._status.past_examples
        self._moments.append(self._look())
        running_call.at_end(self.model, self._end)
        self._status.begin_training(self.numbers)

    def _end(self) -> None:
        self._status.end_training()
        self._is_read = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch = epoch
        # The time since the last step is that of validation and of callbacks.
        self._counts = dataclasses.replace(self._counts, stepped_at=self._clock(), step_of_epoch=0)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._logs = dict(logs or {})

    def advance(self, batch: int, logs: Any) -> None:
        """Notes the end of a call of `fit` whose last step is `batch` of its epoch, from 0."""
        if not self._is_read:
            return
        now, before = self._clock(), self._counts
        num_new = self._steps.advance(batch)
        is_left_out = self._left_out.is_last_step()
        is_timed = before.num_steps > 0 and not is_left_out
        self._counts = _Counts(
            num_steps=before.num_steps + num_new,
            num_timed=before.num_timed + (num_new if is_timed else 0),
            secs=before.secs + (now - before.stepped_at if is_timed else 0.0),
            stepped_at=now,
            step_of_epoch=running_call.num_steps_of_epoch(self.model, batch),
        )
        self._status.note_step()
        if self._wants_logs and isinstance(logs, LazyLogs):
            self._wants_logs = False  # Until somebody reads again.
            self._logs = self._logs | dict(logs.of_worker)

    def numbers(self) -> list[Number]:
        """Returns the numbers at this moment; called in another thread than that of the steps."""
        self._wants_logs = True
        now = self._look()
        self._note_rate(now)
        num_steps, num_examples = self._before
        self._status.past_steps = num_steps + now.counts.num_steps
        self._status.past_examples = num_examples + now.reading.num_examples
        return [
            *self._numbers_of_place(now.counts),
            *self._numbers_of_rate(now),
            *self._numbers_of_workers(now.reading),
            *self._numbers_of_logs(),
        ]

    def _look(self) -> _Moment:
        # A callback that compiles the model in its last step leaves it without one.
        self._step = self.model.train_function or self._step
        counts = self._counts
        return _Moment(self._clock(), self._step, Reading.of(self._step, counts.secs), counts)

    def _note_rate(self, now: _Moment) -> None:
        """Computes the rates since somebody has read some seconds ago."""
        moments = self._moments
        if moments[-1].step is not now.step:  # It was made anew, and counts from 0.
            moments.clear()
            moments.append(now)
        while len(moments) > 1 and now.at - moments[1].at >= _LEAST_SECS:
            moments.popleft()
        before = moments[0]
        num_timed = now.counts.num_timed - before.counts.num_timed
        self._is_moving = num_timed > 0
        if num_timed > 0:
            strategy = self.model.distribute_strategy
            rate = rate_between(before.reading, now.reading, num_timed, strategy)
            # Steps whose time is unknown, such as the first one, had examples as well.
            share = num_timed / (now.counts.num_steps - before.counts.num_steps)
            self._rate = rate and dataclasses.replace(
                rate, num_examples=round(rate.num_examples * share)
            )
        if now.at - moments[-1].at >= 1.0:
            moments.append(now)

    def _numbers_of_place(self, counts: _Counts) -> Iterator[Number]:
        yield Number("step", updates_of(self.model), "Updates that the optimizer has made.")
        yield Number("steps_total", self._status.past_steps, "Steps of `fit` in this process.")
        yield Number(
            "examples_total",
            self._status.past_examples,
            "Examples of these steps, over all workers.",
        )
        yield Number("epoch", self._epoch + 1, "The epoch of `fit`, from 1.")
        params = self.params or {}
        epochs, steps = params.get("epochs", math.inf), params.get("steps")
        if epochs <= MOST_EPOCHS:
            yield Number("epochs", epochs, "The last epoch of `fit`.")
        if epochs > MOST_EPOCHS or not steps:
            return
        num_done, num_all = self._epoch * steps + counts.step_of_epoch, epochs * steps
        share = min(num_done / num_all, 1.0)
        yield Number("progress_ratio", share, "The share of the steps of `fit` that are made.")
        if counts.num_steps:
            secs = (self._clock() - self._began_at) / counts.num_steps
            yield Number(
                "remaining_seconds",
                max(num_all - num_done, 0) * secs,
                "How long the others take at the pace so far.",
            )

    def _numbers_of_rate(self, now: _Moment) -> Iterator[Number]:
        yield Number(
            "training_seconds_total",
            now.counts.secs,
            "Seconds of the steps of this `fit`, without what is compiled and validated.",
        )
        if now.counts.num_steps:
            stepped_at = time.time() - (self._clock() - now.counts.stepped_at)
            yield Number(
                "last_step_timestamp_seconds",
                stepped_at,
                "When a step has ended, or an epoch begun, since 1970.",
            )
        if self._rate is None:
            return
        rate = self._rate.examples_per_second if self._is_moving else 0.0
        yield Number("examples_per_second", rate, "Examples per second, over all workers.")
        yield Number("step_seconds", self._rate.ms_per_step / 1e3, "The mean time of a step.")
        if self._rate.workers:
            yield Number(
                "input_wait_ratio",
                self._rate.input_share,
                "The share of the time that is a wait for batches.",
            )

    def _numbers_of_workers(self, reading: Reading) -> Iterator[Number]:
        """Yields what the chief of parameter servers knows of each worker."""
        strategy = self.model.distribute_strategy
        if not traits.has_remote_variables(strategy):
            return
        watch = deployment.remote_workers(strategy).watch
        yield Number("lost_workers", watch.num_lost, "Workers that are lost at this moment.")
        for index, number in enumerate(reading.num_dropped):
            yield Number(
                "dropped_batches_total",
                int(number),
                "Batches of a worker that came too late for their update, and were computed again.",
                {"worker": str(index)},
            )
        for index, worker in enumerate(self._rate.workers if self._rate else ()):
            labels = {"worker": str(index)}
            yield Number(
                "staleness_updates",
                worker.staleness,
                "Updates that were made while a step of a worker was computed, on average.",
                labels,
            )
            yield Number(
                "worker_steps_per_second",
                worker.steps_per_second,
                "Batches that a worker computes per second.",
                labels,
            )

    def _numbers_of_logs(self) -> Sequence[Number]:
        help_text = "The logs of the epoch: of this worker and so far, or of all at its end."
        return [
            Number("log", float(value), help_text, {"name": name})
            for name, value in self._logs.items()
            if np.ndim(value) == 0
        ]
