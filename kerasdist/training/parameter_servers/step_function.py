"""Runs the steps of `fit` and `evaluate` on asynchronous workers.

It keeps every worker busy: a few calls of some steps each are on their way (`call_runner`), and
each time `fit` asks, the oldest of them has ended. If there is one worker and a callback of the
user's may act between two calls, there is one call at a time; see `batch_hooks`. The numbers that
it reports are those of steps that are done.
"""

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import coordinator_adapter, custom_parts, keras_fit, keras_optimizers
from kerasdist.training.context import deployment, peers
from kerasdist.training.hooks import scope_checks
from kerasdist.training.hooks.lazy_logs import RecentLogs
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.parameter_servers import abandonment, ledger
from kerasdist.training.parameter_servers.call_runner import CallRunner
from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.epoch_iterator import Call, Calls, most_running
from kerasdist.training.parameter_servers.local_copies import LocalCopies
from kerasdist.training.parameter_servers.worker_steps import WorkerSteps
from kerasdist.training.parameter_servers.worker_times import WorkerTimes
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.step.model_step import ModelStep

# Age of the logs at which they are read again: that takes milliseconds.
_LOGS_SECS = 1.0


class WorkerStepFunction(TrainFunction):
    """Runs the steps of a model on the workers of a ParameterServerStrategy.

    Args: those of `ModelStep`.
    """

    _make_steps: Any = WorkerSteps  # Those of synchronous workers are others.
    _shows_apart = False  # As of `ModelStep`.

    def __init__(self, model: keras.Model, step: Callable, **arguments: Any):
        scope_checks.check_placement(model)
        self._strategy = model.distribute_strategy
        self._copies = LocalCopies(model) if custom_parts.is_original_step(step) else None
        self._model_step = ModelStep(
            model,
            step,
            make_delivery=self._make_delivery,
            make_times=functools.partial(WorkerTimes, self._strategy),
            shows_apart=self._shows_apart,
            **arguments,
        )
        self.callbacks = self._model_step.callbacks
        self.num_examples = self._model_step.num_examples
        self.losses, self.times = self._model_step.losses, self._model_step.times
        self._is_first_call = True
        self._is_traced = False
        remote = deployment.remote_workers(self._strategy)
        self._coordinator, self._watch = remote.coordinator, remote.watch
        self._step_watch: Any = deployment.of(self._strategy).step_watch
        num_workers = peers.num_workers(self._strategy)
        # One more for calls that are made again, one after the other.
        num_rows = most_running(num_workers) + num_workers + 1
        self._ledger = ledger.Ledger(ledger.devices_of(self._strategy), num_rows)
        self._steps = self._make_steps(
            model, self._model_step, copies=self._copies, ledger=self._ledger
        )
        self._runner = CallRunner(self._strategy, self._steps, self._ledger)
        self._running: list[Call] = []
        self._abandoned = functools.partial(
            abandonment.abandoned_after_errors, self._coordinator, self._running
        )
        # They hold the iterator of the data, which must end with the `fit` that has made it.
        self._calls: Callable[[], Calls | None] = lambda: None
        self._num_steps_of_epoch = 0
        self._recent: dict | None = None
        self._recent_at = 0.0

    def _make_delivery(self) -> LocalDelivery:
        return RemoteDelivery(self._copies, self.times, self._ledger)

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
                    self._runner.run_batch(batch)
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
                self._runner.settle(call)

    def _advance(self, calls: Calls) -> int:
        self._note_calls(calls)
        while call := calls.take():
            self._start(call)
        if not calls.runs_ahead:
            self._recent = None  # Callbacks see each step, and so do the logs.
        if not self._running:  # `finish` has ended the last ones, in the middle of an epoch.
            return 1
        return self._end(self._running.pop(0))

    def _note_calls(self, calls: Calls) -> None:
        if self._calls() is not calls:
            self._calls, self._num_steps_of_epoch = weakref.ref(calls), calls.num_done_of_epoch

    def _start(self, call: Call) -> None:
        self._runner.start(call)
        self._running.append(call)

    def _end(self, call: Call) -> int:
        """Waits for a call, and counts it; returns how many steps it had batches for."""
        num_taken = self._runner.settle(call)
        call.calls.end(call, num_taken)
        self._num_steps_of_epoch = call.calls.num_done_of_epoch
        return num_taken

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


def check_compiled(model: keras.Model) -> None:
    """Checks, before anything is traced, that workers can run the steps of a model.

    Raises:
        ValueError: It is to run eagerly.
    """
    if model.run_eagerly:
        raise ValueError(
            "`run_eagerly=True` cannot be had with parameter servers: the workers run what the "
            "chief has compiled, and Python of a train_step would run on the chief once. Compile "
            "with run_eagerly=False; to debug, run on one device: `make_strategy(cluster="
            "kerasdist.Cluster.local())`."
        )


def check(model: keras.Model) -> None:
    """Checks, before anything is traced, that asynchronous workers can run the steps of a model.

    Raises:
        ValueError: It is to run eagerly, or one of its optimizers accumulates gradients.
    """
    check_compiled(model)
    for optimizer in keras_optimizers.updating_of(model):
        if steps := optimizer.gradient_accumulation_steps:
            raise ValueError(
                "Asynchronous workers cannot accumulate gradients in the same variables: one would "
                "apply what another has half added. Received: gradient_accumulation_steps="
                f"{steps}. Use larger batches, or DeploymentConfig(sync_replicas=True)."
            )
