"""Runs the steps of `fit` and `evaluate` on asynchronous workers.

It keeps every worker busy: a few calls of some steps each are on their way, and each time `fit`
asks, the oldest of them has ended. If there is one worker and a callback of the user's may act
between two calls, there is one call at a time; see `batch_hooks`. The numbers that it reports are
those of steps that are done.
"""

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter, custom_parts, keras_fit, keras_optimizers
from kerasdist.training.context import deployment, peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import randomness
from kerasdist.training.hooks import scope_checks
from kerasdist.training.hooks.lazy_logs import RecentLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.parameter_servers import abandonment, ledger
from kerasdist.training.parameter_servers.data_source import WorkerDataSource
from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.epoch_iterator import Call, Calls, most_running
from kerasdist.training.parameter_servers.local_copies import LocalCopies
from kerasdist.training.parameter_servers.worker_steps import WorkerSteps
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from kerasdist.training.step.model_step import ModelStep, TraceAgainError

# What the coordinator promises of a call, and the attempt at it.
_Scheduled = tuple[Any, ledger.CallAttempt]
# How far a call has come, as `Ledger.close` returns it; None if it has not begun.
_Done = np.ndarray | None
# What a batch is of; None for one that `train_on_batch` is given.
_Data = WorkerDataSource | None
# Age of the logs at which they are read again: that takes milliseconds.
_LOGS_SECS = 1.0


class WorkerStepFunction(TrainFunction):
    """Runs the steps of a model on the workers of a ParameterServerStrategy.

    Args: those of `ModelStep`.
    """

    def __init__(self, model: keras.Model, step: Callable, **arguments: Any):
        scope_checks.check_placement(model)
        self._strategy = model.distribute_strategy
        self._copies = LocalCopies(model) if custom_parts.is_original_step(step) else None
        self._model_step = ModelStep(
            model,
            step,
            make_delivery=lambda: RemoteDelivery(self._copies, self.times, self._ledger),
            make_times=functools.partial(WorkerTimes, self._strategy),
            **arguments,
        )
        self.callbacks = self._model_step.callbacks
        self.num_examples = self._model_step.num_examples
        self.losses, self.times = self._model_step.losses, self._model_step.times
        self._is_first_call = True
        self._is_traced = False
        self._has_looked = False  # At how its graph draws random numbers.
        remote = deployment.remote_workers(self._strategy)
        self._coordinator, self._watch = remote.coordinator, remote.watch
        self._step_watch: Any = deployment.of(self._strategy).step_watch
        num_workers = peers.num_workers(self._strategy)
        # One more for calls that are made again, one after the other.
        num_rows = most_running(num_workers) + num_workers + 1
        self._ledger = ledger.Ledger(ledger.devices_of(self._strategy), num_rows)
        self._steps = WorkerSteps(model, self._model_step, copies=self._copies, ledger=self._ledger)
        self._running: list[Call] = []
        self._abandoned = functools.partial(
            abandonment.abandoned_after_errors, self._coordinator, self._running
        )
        # They hold the iterator of the data, which must end with the `fit` that has made it.
        self._calls: Callable[[], Calls | None] = lambda: None
        self._num_steps_of_epoch = 0
        self._traced_for = None  # The data, and below the functions traced for it.
        self._concrete: dict = {}
        self._recent: dict | None = None
        self._recent_at = 0.0

    @property
    def may_have_discarded(self) -> bool:
        return True  # It is not known before somebody asks.

    @property
    def num_steps_of_epoch(self) -> int:
        return self._num_steps_of_epoch

    def restart(self) -> None:
        try:
            self.finish()
        except (tf.errors.OpError, *coordinator_adapter.INPUT_ERRORS):
            # It is of a `fit` that has failed, and has said so.
            abandonment.abandon(self._coordinator, self._running)
        self._model_step.restart()
        self._ledger.restart()
        self._is_first_call = True

    def __call__(self, data: Calls | Iterator) -> dict:
        """Runs the steps that `data` asks for.

        Args:
            data: `Calls`, of which the oldest ends; or (from `train_on_batch`) an iterator over
                batches, which run one after the other.

        Returns:
            `RecentLogs`; for `train_on_batch` what Keras expects there.

        Raises:
            StopIteration: There was no batch left.
        """
        self._model_step.begin()
        is_first, self._is_traced = not self._is_traced, True
        with self._step_watch.call(int, is_first=is_first):
            return self._call(data)

    def _call(self, data: Calls | Iterator) -> dict:
        num_taken = None
        with self._abandoned():
            if isinstance(data, Calls):
                num_taken = self._advance(data)
            else:
                for batch in data:
                    self._run_batch(batch)
                self._recent = None
        if num_taken == 0:
            self.finish()
            raise StopIteration
        logs = RecentLogs(
            self._read_recent, read_exact=self._read_exact, nesting=self._model_step.logs.nesting
        )
        return logs if isinstance(data, Calls) else keras_fit.logs_of_batch(logs)

    def finish(self) -> int | None:
        running = list(self._running)
        self._running.clear()
        for call in running:
            self._end(call)
        calls = self._calls()
        if calls is None or calls.peek() is None:
            return None
        return calls.num_done_of_epoch

    def wait(self) -> None:
        # The calls end later, as callbacks count them: the logs of `fit` are then without them.
        with self._abandoned():
            for call in self._running:
                self._settle(call)

    def _advance(self, calls: Calls) -> int:
        if self._calls() is not calls:
            self._calls, self._num_steps_of_epoch = weakref.ref(calls), calls.num_done_of_epoch
        while call := calls.take():
            self._start(call)
        if not calls.runs_ahead:
            self._recent = None  # Callbacks see each step, and so do the logs.
        if not self._running:  # `finish` has ended the last ones, in the middle of an epoch.
            return 1
        return self._end(self._running.pop(0))

    def _start(self, call: Call) -> None:
        call.result = self._schedule(call)
        self._running.append(call)

    def _schedule(self, call: Call) -> _Scheduled:
        source = call.calls.source
        if call.batch is not None:
            return self._schedule_batch(call.batch, call.position, source.data)
        run, numbers = self._steps.of_call(call, has_lost=self._watch.has_lost)
        iterators = source.iterators(self._steps.progress)
        arguments = (iterators, *([tf.constant(numbers, tf.int64)] if numbers else []))
        return self._schedule_once(self._traced(run, source.data, arguments), arguments)

    def _traced(self, run: Callable, data: WorkerDataSource, arguments: tuple) -> Callable:
        if data is not self._traced_for:
            self._traced_for, self._concrete = data, {}
        if run not in self._concrete:
            self._step_watch.expect_trace()
            self._concrete[run] = _again_while_asked(
                coordinator_adapter.concrete_function, self._coordinator, run, arguments
            )
            if not self._has_looked:
                self._has_looked = True
                num_workers = peers.num_workers(self._strategy)
                randomness.warn_of_repeats(self._concrete[run].graph, num_workers)
        return self._concrete[run]

    def _schedule_batch(
        self, batch: Any, position: int, data: _Data, done: _Done = None
    ) -> _Scheduled:
        batch = batches.as_tensors(batches.without_optionals(batch))
        run, numbers = self._steps.of_batch(position, done)
        if data is not None:
            # As where workers read it. Keras weighs losses in another way where the shape says how
            # many examples there are, and a batch that is here does.
            run = self._traced(run, data, (_spec_of(batch, data.element_spec), *numbers))
        return self._schedule_once(run, (batch, *numbers))

    def _schedule_once(self, run: Callable, arguments: tuple) -> _Scheduled:
        attempt = self._ledger.attempt()
        result = _again_while_asked(
            coordinator_adapter.schedule_once, self._coordinator, run, arguments, attempt
        )
        return result, attempt

    def _end(self, call: Call) -> int:
        """Waits for a call, and counts it; returns how many steps it had batches for."""
        num_taken = self._settle(call)
        call.calls.end(call, num_taken)
        self._num_steps_of_epoch = call.calls.num_done_of_epoch
        return num_taken

    def _settle(self, call: Call) -> int:
        """Waits for a call, and makes what is missing of it; returns how many steps it has had."""
        if call.num_taken is not None:
            return call.num_taken
        promise, attempt = call.result
        numbers = self._watch.fetch_once(promise, attempt)
        call.num_taken = call.num_steps
        if attempt.is_lost:
            call.num_taken = self._make_up(call, self._done_of(attempt))
        elif call.batch is None and call.calls.source.data.is_strict:
            position, call.num_taken = map(int, numbers)
            if position != call.position:  # Lost with a worker, and this one had read on.
                nothing = np.zeros(len(self._ledger.devices), np.int64)
                call.num_taken = self._run_again(call, nothing)
        return call.num_taken

    def _done_of(self, attempt: ledger.CallAttempt) -> np.ndarray:
        """Returns what a lost call has done, as the parameter servers know it."""
        with self._watch.waiting():
            return self._ledger.close(attempt)

    def _make_up(self, call: Call, done: np.ndarray) -> int:
        """Makes what is missing of the steps of a lost call; returns how many it has."""
        source = call.calls.source
        if call.batch is not None:
            self._run_batch(call.batch, call.position, source.data, done)
            return 1
        if source.data.is_strict:
            return self._run_again(call, done)
        iterators = source.iterators(self._steps.progress)
        num_steps = tf.constant(call.num_steps, tf.int64)

        def schedule(done: _Done) -> _Scheduled:
            arguments = iterators, num_steps, tf.constant(done)
            return self._schedule_once(self._steps.next_again, arguments)

        self._until_done(done, schedule)
        return call.num_steps

    def _run_again(self, call: Call, done: np.ndarray) -> int:
        num_taken, source = 0, call.calls.source
        for batch in source.reread(call.position, call.num_steps):
            self._run_batch(batch, call.position, source.data, ledger.of_step(done, num_taken))
            num_taken += 1
        return num_taken

    def _run_batch(
        self, batch: Any, position: int = 0, data: _Data = None, done: _Done = None
    ) -> None:
        """Runs the step of a batch, or what is missing of it, and waits for it."""
        self._until_done(done, lambda done: self._schedule_batch(batch, position, data, done))

    def _until_done(self, done: _Done, schedule: Callable[[_Done], _Scheduled]) -> None:
        """Schedules a call, by `schedule(done)`, until its worker is not lost."""
        while done is None or (done < ledger.ALL).any():
            result, attempt = schedule(done)
            self._watch.fetch_once(result, attempt)
            if not attempt.is_lost:
                return
            found = self._done_of(attempt)
            done = found if done is None else np.maximum(done, found)

    def _read_recent(self) -> dict:
        if self._recent is None or time.monotonic() > self._recent_at + _LOGS_SECS:
            self._recent = self._read_logs()
            self._recent_at = time.monotonic()
        return dict(self._recent)

    def _read_exact(self) -> dict:
        self.finish()
        self._recent = None
        if self._is_first_call:
            self._is_first_call = False
            with self._watch.waiting():
                self._model_step.warn_of_batch(is_divided=True)
        return self._read_logs()

    def _read_logs(self) -> dict:
        with self._watch.waiting():
            return self._model_step.logs.read()


def _again_while_asked(trace: Callable, *arguments: Any) -> Any:
    while True:
        with contextlib.suppress(TraceAgainError):
            return trace(*arguments)


def _spec_of(batch: Any, element_spec: Any) -> Any:
    return tf.nest.map_structure(
        lambda leaf, spec: None if leaf is None else spec, batch, element_spec
    )


def check(model: keras.Model) -> None:
    """Checks, before anything is traced, that asynchronous workers can run the steps of a model.

    Raises:
        ValueError: It is to run eagerly, or one of its optimizers accumulates gradients.
    """
    if model.run_eagerly:
        raise ValueError(
            "`run_eagerly=True` cannot be had with parameter servers: the workers run what the "
            "chief has compiled, and Python of a train_step would run on the chief once. Compile "
            "with run_eagerly=False; to debug, run on one device: `make_strategy(cluster="
            "kerasdist.Cluster.local())`."
        )
    for optimizer in keras_optimizers.updating_of(model):
        if steps := optimizer.gradient_accumulation_steps:
            raise ValueError(
                "Workers that train the same variables cannot accumulate gradients in them: one "
                "would apply what another has half added. Received: gradient_accumulation_steps="
                f"{steps}. Use larger batches."
            )
