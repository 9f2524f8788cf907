"""The function that `fit` and `evaluate` call for every step.

It takes global batches, runs the model's own train_step (or test_step) on every replica, and
returns logs that nobody has computed yet. `steps_per_execution` steps run inside one call.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_fit
from kerasdist.training.context import running_call
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.hooks import graph_checks
from kerasdist.training.hooks.lazy_logs import LazyLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.step import graph_errors
from kerasdist.training.step.checked_steps import CheckedSteps
from kerasdist.training.step.first_step_check import FirstStepCheck
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.step.repeated_batches import RepeatedBatches
from kerasdist.training.step.step_graphs import StepGraphs
from kerasdist.training.step.traced_steps import StepResult, TracedSteps
from kerasdist.training.step.worker_news import WorkerNews


class StepFunction(TrainFunction):
    """Runs one or more steps of a model over the replicas of its strategy.

    Args:
        model: A compiled model of one of our strategies.
        step: The model's bound train_step or test_step.
        trial: Looks at the first step before it runs, and at later ones that may show more; says
            whether every replica is to have the whole batch, as `Trial.warn_of_differences`
            does; or None.
        **arguments: Further ones of `ModelStep`.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable,
        *,
        trial: Callable | None = None,
        **arguments: Any,
    ):
        self._model = model
        self._step = ModelStep(model, step, **arguments)
        self.callbacks = self._step.callbacks
        self.num_examples = self._step.num_examples
        self.losses, self.times = self._step.losses, self._step.times
        self._news = WorkerNews(model.distribute_strategy)
        self._repeated = RepeatedBatches(model, self._step)
        self._graphs = StepGraphs(model, self._repeated, expect_trace=self._news.expect_trace)
        self._check = FirstStepCheck(model, self._step, trial, before=self._begin_check)
        self._steps = TracedSteps(
            model, self._step, self._repeated, self._news, tracing=self._tracing
        )
        self._checked = CheckedSteps(model, self._steps, self._graphs, self._check, self._repeated)
        self._result: StepResult | None = None  # What a call of one step has returned.
        self._is_first_call = True

    @property
    def is_repeated(self) -> bool:
        return self._repeated.are_on

    @property
    def was_checked(self) -> bool:
        return self._check.is_made

    @property
    def is_stop_requested(self) -> bool:
        if self._result is None:
            return self._news.num_stop_requests() > 0
        requests = self._result.num_stop_requests
        return requests is not None and float(requests) > 0

    @property
    def may_have_discarded(self) -> bool:
        if self._result is None:
            return True
        return self._result.is_discarded is not None and bool(self._result.is_discarded)

    def restart(self) -> None:
        self._step.restart()
        self._news.restart()
        self._result = None
        self._is_first_call = True

    def look_again(self) -> None:
        self._news.look_again()

    def request_stop(self) -> None:
        self._news.request_stop()

    def trace_again(self) -> None:
        self._graphs.clear()

    def __call__(self, data: GlobalBatches | Iterator) -> dict:
        """Runs the steps that `data` asks for.

        Args:
            data: `GlobalBatches`, or (from `train_on_batch`) an iterator over batches.

        Returns:
            `LazyLogs`; for `train_on_batch` what Keras expects there.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: There was no batch left.
        """
        self._step.begin()
        is_first = self._steps.begin_call(data.num_steps if isinstance(data, GlobalBatches) else 1)
        with self._news.call(is_first=is_first):
            return self._call(data)

    def _call(self, data: GlobalBatches | Iterator) -> dict:
        start = time.perf_counter()
        self._result = None
        self._repeated.read_metrics()
        self._repeated.see(data)
        if self._is_first_call or (isinstance(data, GlobalBatches) and data.first_step == 0):
            self._check.begin(are_divided=not self.is_repeated)
        try:
            self._result = self._checked.run(data)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except Exception as error:  # Raised again, in other words where there are some.
            told, cause = self._explained(error)
            if told is error:
                raise
            raise told from cause
        if self._is_first_call:
            self._is_first_call = False
            self._step.warn_of_batch(is_divided=not self.is_repeated)
        self._news.compare_batches()
        self.times.add_call(time.perf_counter() - start)
        logs = self._logs()
        if isinstance(data, GlobalBatches):
            return logs
        return keras_fit.logs_of_batch(logs, is_eager=self._model.run_eagerly)

    def _explained(self, error: Exception) -> tuple[Exception, Exception | None]:
        """Returns the error that is raised in place of one, and what is shown as its cause."""
        told = graph_checks.explained(error)
        if told is not error:
            return told, None
        if self.is_repeated and isinstance(error, tf.errors.ResourceExhaustedError):
            error.add_note(graph_errors.MEMORY_OF_WHOLE_BATCH)
        if self._model.distribute_strategy.num_replicas_in_sync > 1:
            step = self._step
            told = graph_errors.of_parts(error, self._model, step.step, step.first_axes.describe())
        return told, error

    def _logs(self) -> LazyLogs:
        return LazyLogs(
            self._step.logs.read,
            read_of_worker=self._step.logs.read_of_worker if self._news.has_others else None,
            nesting=self._step.logs.nesting,
        )

    def _begin_check(self) -> None:
        self._news.expect_trace()
        if not self._is_first_call:
            running_call.leave_out_of_rates(self._model)

    @contextlib.contextmanager
    def _tracing(self) -> Generator[None]:
        with self._graphs.tracing():
            yield
        self._check.note_trace()
