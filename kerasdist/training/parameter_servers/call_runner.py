"""Runs calls on workers, so that each step is made once, whichever worker is lost."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter
from kerasdist.training.context import deployment, peers
from kerasdist.training.data import batches
from kerasdist.training.gradients import randomness
from kerasdist.training.parameter_servers import ledger
from kerasdist.training.parameter_servers.data_source import WorkerDataSource
from kerasdist.training.parameter_servers.epoch_iterator import Call
from kerasdist.training.parameter_servers.worker_steps import WorkerSteps
from kerasdist.training.step.model_step import TraceAgainError

# The coordinator's promise of a result, and the attempt at the call.
_Scheduled = tuple[Any, ledger.CallAttempt]
# How far a call has come, as `Ledger.close` returns it; None if it has not begun.
_Done = np.ndarray | None
# The data of a batch; None for one that `train_on_batch` is given.
_Data = WorkerDataSource | None


class CallRunner:
    """Schedules calls, waits for them, and makes what lost workers have left.

    Args:
        strategy: Our ParameterServerStrategy.
        steps: The graphs of calls.
        notes: The ledger in which parameter servers note these.
    """

    def __init__(self, strategy: tf.distribute.Strategy, steps: WorkerSteps, notes: ledger.Ledger):
        remote = deployment.remote_workers(strategy)
        self._coordinator, self._watch = remote.coordinator, remote.watch
        self._step_watch: Any = deployment.of(strategy).step_watch
        self._num_workers = peers.num_workers(strategy)
        self._steps, self._ledger = steps, notes
        self._has_looked = False  # Whether their graphs may draw the same random numbers.
        self._traced_for = None  # The data, and below the functions traced for it.
        self._concrete: dict = {}

    def start(self, call: Call) -> None:
        """Lets the next worker that is free run a call."""
        source = call.calls.source
        if call.batches is not None:
            (batch,) = call.batches.values()
            call.result = self._schedule_batch(batch, call.position, source.data)
            return
        run, numbers = self._steps.of_call(call, has_lost=self._watch.has_lost)
        iterators = source.iterators(self._steps.progress)
        arguments = (iterators, *([tf.constant(numbers, tf.int64)] if numbers else []))
        run = self.traced(run, source.data, arguments)
        call.result = self.schedule_once(run, arguments)

    def traced(self, run: Callable, data: WorkerDataSource, arguments: tuple) -> Callable:
        """Returns a function of workers, traced for data that they read."""
        if data is not self._traced_for:
            self._traced_for, self._concrete = data, {}
        if run not in self._concrete:
            self._step_watch.expect_trace()
            self._concrete[run] = again_while_asked(
                coordinator_adapter.concrete_function, self._coordinator, run, arguments
            )
            if not self._has_looked:
                self._has_looked = True
                randomness.warn_of_repeats(self._concrete[run].graph, self._num_workers)
        return self._concrete[run]

    def _schedule_batch(
        self, batch: Any, position: int, data: _Data, done: _Done = None
    ) -> _Scheduled:
        batch = batches.as_tensors(batches.without_optionals(batch))
        run, numbers = self._steps.of_batch(position, done)
        if data is not None:
            # The trace is that of workers which read it. Keras weighs losses in another way where
            # the shape says how many examples there are, and a batch that is here does.
            run = self.traced(run, data, (_spec_of(batch, data.element_spec), *numbers))
        return self.schedule_once(run, (batch, *numbers))

    def schedule_once(self, run: Callable, arguments: tuple) -> _Scheduled:
        """Lets the next worker that is free run a function, which no other one runs again."""
        attempt = self._ledger.attempt()
        result = again_while_asked(
            coordinator_adapter.schedule_once, self._coordinator, run, arguments, attempt
        )
        return result, attempt

    def settle(self, call: Call) -> int:
        """Waits for a call, and makes what is missing of it; returns how many steps it has had."""
        if call.num_taken is not None:
            return call.num_taken
        promise, attempt = call.result
        numbers = self._watch.fetch_once(promise, attempt)
        call.num_taken = call.num_steps
        if attempt.is_lost:
            call.num_taken = self._make_up(call, self._done_of(attempt))
        elif call.batches is None and call.calls.source.data.is_strict:
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
        if call.batches is not None:
            (batch,) = call.batches.values()
            self.run_batch(batch, call.position, source.data, done)
            return 1
        if source.data.is_strict:
            return self._run_again(call, done)
        iterators = source.iterators(self._steps.progress)
        num_steps = tf.constant(call.num_steps, tf.int64)

        def schedule(done: _Done) -> _Scheduled:
            arguments = iterators, num_steps, tf.constant(done)
            return self.schedule_once(self._steps.next_again, arguments)

        self._until_done(done, schedule)
        return call.num_steps

    def _run_again(self, call: Call, done: np.ndarray) -> int:
        num_taken, source = 0, call.calls.source
        for batch in source.reread(call.position, call.num_steps):
            self.run_batch(batch, call.position, source.data, ledger.of_step(done, num_taken))
            num_taken += 1
        return num_taken

    def run_batch(
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


def again_while_asked(trace: Callable, *arguments: Any) -> Any:
    """Returns `trace(*arguments)`, which may ask for another trace; see `TraceAgainError`."""
    while True:
        with contextlib.suppress(TraceAgainError):
            return trace(*arguments)


def _spec_of(batch: Any, element_spec: Any) -> Any:
    return tf.nest.map_structure(
        lambda leaf, spec: None if leaf is None else spec, batch, element_spec
    )
