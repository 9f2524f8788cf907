"""Runs the steps of `fit` on synchronous workers: each is an update, of several batches.

Workers compute batches for as long as a call lasts, and stage what comes of them. The chief makes
the updates itself, in one graph (`rounds`).
"""

import contextlib
import math
import threading
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.cluster import Task
from kerasdist.private import coordinator_adapter
from kerasdist.training.context import deployment, peers
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.hooks.lazy_logs import RecentLogs
from kerasdist.training.parameter_servers import call_runner, ledger
from kerasdist.training.parameter_servers.data_source import Pass
from kerasdist.training.parameter_servers.epoch_iterator import Call, Calls
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.synchronous_servers import inseparable
from kerasdist.training.synchronous_servers.rounds import Progress, Result, Rounds
from kerasdist.training.synchronous_servers.staged_update import StagedUpdate
from kerasdist.training.synchronous_servers.worker_rounds import WorkerRounds

_LOOK_SECS = 0.1


class SynchronousStepFunction(WorkerStepFunction):
    """Runs the steps of a model on the workers of a ParameterServerStrategy, all together.

    Args: those of `ModelStep`.
    """

    _make_steps = WorkerRounds
    _shows_apart = True  # Once for an update, of several steps.

    def __init__(self, model: keras.Model, step: Callable, **arguments: Any):
        super().__init__(model, step, **arguments)
        self._model = model
        number = deployment.remote_workers(self._strategy).num_to_aggregate
        assert number is not None
        self._num_to_aggregate, self._num_seats = number, peers.num_workers(self._strategy)
        self._device, *_ = ledger.devices_of(self._strategy)
        self._rounds = Rounds(num_seats=self._num_seats, device=self._device)
        self._update = StagedUpdate(
            model, self._steps.counts, self._copies, model_step=self._model_step
        )
        self._work = self._steps.in_rounds(self._rounds, self._update)
        self._begin: Callable | None = None  # The graphs of the chief, once they are traced.
        self._of_number: dict[int, Callable] = {}
        self._working: list[tuple] = []  # What workers do, until it is awaited.
        self._key: Any = tf.constant(0, tf.int64)
        self._number: Any = tf.constant(0, tf.int64)

    def _make_delivery(self) -> LocalDelivery:
        return self._update.delivery()

    def try_trace(self, element_spec: Any) -> None:
        """Traces the step of a worker, of batches of some form, and forgets it.

        Raises:
            InseparableError: An update cannot be made of the gradients of several batches.
        """
        self._step_watch.expect_trace()
        run = self._steps.of_given(self._update)
        with self._strategy.scope(), coordinator_adapter.traced_for_workers(self._strategy):
            graph = call_runner.again_while_asked(run.get_concrete_function, element_spec).graph
        inseparable.check_metrics(self._steps.counts.others_among(self._model.metrics))
        inseparable.check_assigned(self._model, graph, self._update.states.set_by_first())

    def restart(self) -> None:
        super().restart()
        self._end_after_error()
        self._forget_batches()

    def _call(self, data: Any) -> dict:
        if not isinstance(data, Calls):
            raise ValueError(
                "Synchronous workers over parameter servers train with `fit`. Received: "
                "`train_on_batch`, whose batch one worker would compute alone."
            )
        self._note_calls(data)
        call = data.take()
        if call is None:
            raise StopIteration
        with self._abandoned():
            self._make(call)
        data.end(call, call.num_steps)
        self._num_steps_of_epoch = data.num_done_of_epoch
        return RecentLogs(
            self._read_recent, read_exact=self._read_exact, nesting=self._model_step.logs.nesting
        )

    def _make(self, call: Call) -> None:
        """Makes some updates.

        Raises:
            tf.errors.UnavailableError: A worker is lost.
            ValueError: The data is none that workers read, with a known end.
        """
        self._end_after_error()
        source = call.calls.source
        if not source.data.is_strict or call.calls.end_position == math.inf:
            raise ValueError(
                "Synchronous workers over parameter servers read their data themselves, and cannot "
                f"read this: {source.data.description}. Give a tf.data.Dataset of known length."
            )
        position = call.position * self._num_to_aggregate
        end = min(position + call.num_steps * self._num_to_aggregate, int(call.calls.end_position))
        self._make_from(source, position, end)
        self._settle()

    def _make_from(self, source: Pass, position: int, end: int) -> None:
        """Makes updates while all workers compute batches for them.

        Fewer of them if a worker ends before, as `_settle` says then.

        Args:
            source: Of the batches.
            position: Of the first batch.
            end: Behind the last one.
        """
        run = self._runner.traced(self._work, source.data, self._arguments(source, seat=0))
        numbers = (tf.constant(each, tf.int64) for each in (position, end))
        progress = Progress(self._key, *numbers, self._number, self._key)
        full, rest = divmod(end - position, self._num_to_aggregate)
        parts = [(self._num_to_aggregate, full), *([(rest, 1)] if rest else [])]
        # An error of a trace comes before any worker waits for a token.
        graphs = [(self._graph_of(number, progress), count) for number, count in parts if count]
        for seat in range(self._num_seats):
            arguments = self._arguments(source, seat)
            self._working.append(self._runner.schedule_once(run, arguments))
        with self._watch.waiting(), self._working_until_the_end(progress):
            progress = self._begun(progress)
            for make, count in graphs:
                # On a server: what the chief itself has begun does not end once TensorFlow makes
                # its connections anew, to a worker that is lost.
                with tf.device(self._device), coordinator_adapter.apart_from_others():
                    num_new, found, *_ = make(tf.constant(count, tf.int64), progress)
                progress = Progress(*found)
                if num_new < count:
                    break
        self._key, self._number = progress.key, progress.update

    def _settle(self) -> None:
        """Waits until all workers have ended.

        Raises:
            tf.errors.UnavailableError: One of them is lost.
        """
        while self._working:
            promise, attempt = self._working[0]
            self._watch.fetch_once(promise, attempt)
            if attempt.is_lost:
                raise tf.errors.UnavailableError(
                    None, None, f"Worker {attempt.worker}, whose batches an update needs, is lost."
                )
            self._working.pop(0)

    def _end_after_error(self) -> None:
        """Lets workers end that an error has left, and forgets what they have done."""
        if not self._working:
            return
        self._rounds.clear()
        self._rounds.end(self._key)
        for promise, attempt in self._working:
            with contextlib.suppress(tf.errors.OpError, *coordinator_adapter.INPUT_ERRORS):
                self._watch.fetch_once(promise, attempt)
        self._working.clear()
        self._forget_batches()

    def _forget_batches(self) -> None:
        self._rounds.clear()
        self._update.contributions.clear()

    def _arguments(self, source: Pass, seat: int) -> tuple:
        iterators = source.iterators(self._steps.progress)
        return iterators, tf.constant([source.generation, seat, int(self._key)], tf.int64)

    @contextlib.contextmanager
    def _working_until_the_end(self, progress: Progress) -> Generator[None]:
        """Lets workers stop at the end; and ends the wait for them if one of them ends before."""
        is_done = threading.Event()

        def look() -> None:
            while not is_done.wait(_LOOK_SECS):
                if self._has_ended():
                    self._rounds.interrupt()
                    return

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()
            with contextlib.suppress(tf.errors.OpError):  # An error of a server itself is raised.
                self._rounds.end(progress.round)

    def _has_ended(self) -> bool:
        """Whether a worker has ended, with an error or because it is lost or given up."""
        # A lost one's attempt is not ended before another worker has time for it.
        lost = self._watch.lost_workers()
        for promise, attempt in self._working:
            if coordinator_adapter.wait_for(promise, 0):
                return True
            task = None if attempt.worker is None else Task("worker", attempt.worker)
            if task in lost and attempt.give_up():
                return True
        return False

    def _begun(self, progress: Progress) -> Progress:
        if self._begin is None:
            begin = graph_function(lambda place: self._rounds.begin(place, self._num_to_aggregate))
            self._begin = begin.get_concrete_function(progress)
        return Progress(*self._begin(progress))

    def _graph_of(self, number: int, progress: Progress) -> Callable:
        """Returns what makes updates, each of `number` batches."""
        if number not in self._of_number:
            self._step_watch.expect_trace()
            with self._strategy.scope(), coordinator_adapter.traced_for_workers(self._strategy):
                graph = graph_function(lambda *given: _values_of(self._updates(number, *given)))
                self._of_number[number] = graph.get_concrete_function(
                    tf.TensorSpec([], tf.int64), progress
                )
        return self._of_number[number]

    def _updates(self, number: int, num_updates: tf.Tensor, progress: Progress) -> Result:
        return self._rounds.updates(
            num_updates,
            progress,
            num_to_aggregate=number,
            update=self._update.make,
            drop=self._update.contributions.drop,
        )


def _values_of(result: Result) -> tuple:
    """Returns what a graph may return: no dataclass of ours."""
    return result.num_made, result.progress, result.positions, result.num_dropped
