"""Runs the steps of `fit` on synchronous workers: each is an update, of several batches.

Workers compute batches from the first call over the data to the last one, and stage what comes of
them. The chief makes the updates itself, in one graph (`rounds`).
"""

import dataclasses
import math
import time
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter
from kerasdist.training.context import deployment, peers
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.hooks.lazy_logs import STALE, RecentLogs
from kerasdist.training.parameter_servers import call_runner, ledger
from kerasdist.training.parameter_servers.data_source import Pass, WorkerDataSource
from kerasdist.training.parameter_servers.epoch_iterator import Call, Calls
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction
from kerasdist.training.replica.delivery import LocalDelivery
from kerasdist.training.synchronous_servers import inseparable, round_state
from kerasdist.training.synchronous_servers.round_state import RoundState
from kerasdist.training.synchronous_servers.rounds import Rounds
from kerasdist.training.synchronous_servers.seats import Seats
from kerasdist.training.synchronous_servers.sent_batches import BatchForm, SentBatches
from kerasdist.training.synchronous_servers.staged_update import StagedUpdate
from kerasdist.training.synchronous_servers.worker_rounds import WorkerRounds


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UpdatesMade:
    """Which batches some updates were made of.

    Attributes:
        positions: Those of the batches of each update in the pass over the data, in order.
        workers: The index of the worker that has computed each of them.
        late: The workers that computed with older weights when the last update was made.
    """

    positions: tuple[tuple[int, ...], ...] = ()
    workers: tuple[tuple[int, ...], ...] = ()
    late: tuple[int, ...] = ()


class SynchronousStepFunction(WorkerStepFunction):
    """Runs the steps of a model on the workers of a ParameterServerStrategy, all together.

    Args: those of `ModelStep`.

    Attributes:
        updates_made: By the last call.
    """

    _make_steps = WorkerRounds
    _shows_apart = True  # Once for an update, of several steps.

    def __init__(self, model: keras.Model, step: Callable, **arguments: Any):
        super().__init__(model, step, **arguments)
        self._model = model
        remote = deployment.remote_workers(self._strategy)
        assert remote.num_to_aggregate is not None
        self._occupation = remote.occupation
        self._num_to_aggregate = remote.num_to_aggregate
        num_seats = peers.num_workers(self._strategy)
        self._device, *_ = ledger.devices_of(self._strategy)
        self._rounds = Rounds(
            num_seats=num_seats, num_to_aggregate=self._num_to_aggregate, device=self._device
        )
        self._seats = Seats(self._rounds, num_seats, self._watch)
        self._update = StagedUpdate(
            model,
            self._steps.counts,
            self._copies,
            model_step=self._model_step,
            home=self._rounds.device,
        )
        self._state = self._rounds.first_state()
        # Of the batches that `_state` speaks of. It has iterators, which must end with their `fit`.
        self._source: Callable[[], Pass | None] = lambda: None
        self._data: WorkerDataSource | None = None
        self._work: Any = None  # The graph of workers for `_data`, and what the chief sends them.
        self._sent: SentBatches | None = None
        # As `_begin` has set it; smaller in `_state` where the data ended before.
        self._known_end = 0
        self._of_number: dict[int, Callable] = {}  # The graphs of the chief, once they are traced.
        self.updates_made = UpdatesMade()
        self.num_dropped = np.zeros([num_seats], np.int64)
        self._num_dropped_before = 0  # The epoch.

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
        self._abandon_round()
        super().restart()
        self.num_dropped = np.zeros_like(self.num_dropped)
        self._num_dropped_before = 0

    def _call(self, data: Any) -> dict:
        if not isinstance(data, Calls):
            raise ValueError(
                "Synchronous workers over parameter servers train with `fit`. Received: "
                "`train_on_batch`, whose batch one worker would compute alone."
            )
        if self._calls() is not data:
            self._num_dropped_before = int(self.num_dropped.sum())
        self._note_calls(data)
        call = data.take()
        if call is None:
            raise StopIteration
        start = time.perf_counter()
        with self._abandoned():
            num_taken = self._make(call)
            self.times.add_call(time.perf_counter() - start)
            data.end(call, num_taken, tuple(self._state.given))
            if data.peek() is None:
                self._close_round()
        self._num_steps_of_epoch = data.num_done_of_epoch
        self._recent = None  # The logs are those of these updates.
        if num_taken == 0:
            raise StopIteration
        return RecentLogs(
            self._read_recent, read_exact=self._read_exact, nesting=self._model_step.logs.nesting
        )

    def _read_logs(self) -> dict:
        logs = super()._read_logs()
        if self._num_to_aggregate < len(self.num_dropped):
            logs[STALE] = int(self.num_dropped.sum()) - self._num_dropped_before
        return logs

    def _make(self, call: Call) -> int:
        """Makes the updates of a call; returns how many there are batches for."""
        try:
            self._begin(call)
            num_made = 0
            while num_made < call.num_steps and (left := self._state.num_left):
                number = min(left, self._num_to_aggregate)
                num_wanted = min(call.num_steps - num_made, left // number)
                num_made += self._make_some(num_wanted, number)
                self._free_lost_seats()
        except BaseException:
            self._abandon_round()
            raise
        return num_made

    def _begin(self, call: Call) -> None:
        """Makes sure that workers compute batches of a call."""
        source, first = call.calls.source, call.position * self._num_to_aggregate
        # A callback may have ended an epoch, and the next one begins elsewhere.
        if source is not self._source() or first != self._state.num_used:
            self._close_round()
            self._begin_at(source, first, call.calls.given)
        end = call.calls.end_position
        if call.batches is not None:
            assert self._sent is not None
            for position, batch in call.batches.items():
                self._sent.stage(position, batch)
            end = max([self._known_end, *(position + 1 for position in call.batches)])
        if self._state.numbers[round_state.END] == self._known_end:
            self._known_end = round_state.UNKNOWN_END if end == math.inf else int(end)
            self._state.numbers[round_state.END] = self._known_end
        if not self._seats.are_open:
            self._open_round(source)
        self.updates_made = UpdatesMade()

    def _begin_at(self, source: Pass, num_used: int, given: tuple[int, ...]) -> None:
        """Begins with a pass, of which some batches are in updates, and some were only given."""
        self._prepare(source.data)
        self._source, numbers = weakref.ref(source), self._state.numbers
        self._state.set_again(list(given))
        self._known_end = num_used + len(given)
        numbers[[round_state.POSITION, round_state.END]] = self._known_end
        is_sent = not source.data.is_on_workers
        numbers[round_state.FRESH_KIND] = round_state.SENT if is_sent else round_state.NEXT
        is_sent = self._sent is not None
        numbers[round_state.LOST_KIND] = round_state.SENT if is_sent else round_state.NEXT

    def _prepare(self, data: WorkerDataSource) -> None:
        """Prepares the graph of workers for some data."""
        if data is self._data:
            return
        self._data, self._sent = data, None
        if not data.is_on_workers or data.is_strict:
            self._sent = SentBatches(BatchForm(data.element_spec), self._rounds.device)
        self._work = self._steps.in_rounds(
            self._rounds,
            self._update,
            data=data,
            sent=self._sent,
            keeps_batches=self._num_to_aggregate < len(self._seats.tokens),
        )

    def _open_round(self, source: Pass) -> None:
        """Lets workers take their seats, and leave those of a `fit` around this one."""
        self._occupation.make_way()
        run = self._runner.traced(self._work, source.data, self._arguments(source, seat=0))
        # An error of a trace comes before any worker waits for a token.
        left = self._state.num_left
        for number in {min(left, self._num_to_aggregate), left % self._num_to_aggregate} - {0}:
            if left < round_state.UNKNOWN_END // 2 or number == self._num_to_aggregate:
                self._graph_of(number)

        def start(seat: int) -> tuple:
            self._occupation.end()
            try:
                return self._runner.schedule_once(run, self._arguments(source, seat))
            finally:
                self._occupation.begin(self._close_round)

        self._send_again()
        self._seats.open(start)
        for seat, incarnation in enumerate(self._seats.incarnations):
            self._state.free(seat, incarnation)
        # Where each worker reads a part of its own, who takes a batch decides which one it is.
        if not source.data.is_strict and not self._watch.lost_workers():
            self._state.expect_all()

    def _arguments(self, source: Pass, seat: int) -> tuple:
        queue = self._rounds.number_of(self._seats.tokens[seat])
        numbers = [source.generation, seat, self._seats.incarnations[seat], queue]
        iterators = []
        if source.data.is_on_workers:
            iterators = [source.iterators(self._steps.progress)]
        return tf.constant(numbers, tf.int64), *iterators

    def _make_some(self, num_updates: int, number: int) -> int:
        """Makes updates, each of `number` batches; returns how many, which may be fewer."""
        make = self._graph_of(number)
        arguments = self._rounds.said, *self._seats.tokens
        # On a server: what the chief itself has begun does not end once TensorFlow makes its
        # connections anew, to a worker that is lost.
        with (
            self._watch.waiting(),
            tf.device(self._device),
            coordinator_adapter.apart_from_others(),
        ):
            vector = tf.constant(self._state.vector())
            found = make(tf.constant(num_updates, tf.int64), vector, *arguments).numpy()
        num_made, state, log = self._rounds.result_of(found, number)
        self._note(state, log)
        return num_made

    def _note(self, state: RoundState, log: np.ndarray) -> None:
        """Notes which batches updates were made of, and the state of the round after them."""
        workers = np.array([0 if each is None else each for each in self._seats.workers])
        before, after = (each.seats[:, round_state.NUM_STALE] for each in (self._state, state))
        np.add.at(self.num_dropped, workers, after - before)
        self._state = state
        positions = log[..., 0]
        self.updates_made = UpdatesMade(
            positions=(*self.updates_made.positions, *map(tuple, positions.tolist())),
            workers=(*self.updates_made.workers, *map(tuple, workers[log[..., 1]].tolist())),
            late=tuple(sorted(workers[state.late_seats].tolist())),
        )
        if self._sent is not None:
            self._sent.forget(positions.ravel().tolist())

    def _free_lost_seats(self) -> None:
        """Lets others compute what lost workers have left, and take their seats."""
        for seat in self._seats.take_lost():
            self._state.free(seat, self._seats.incarnations[seat])
        self._send_again()

    def _send_again(self) -> None:
        """Sends the batches that are to be given again, where workers have read on."""
        source = self._source()
        if self._sent is None or source is None:
            return
        found = []
        for position in self._state.again:
            if not self._sent.has(position):
                batch = next(source.reread(position, 1), None)
                if batch is None:  # No worker could say that the data ends here.
                    end = min(position, self._state.numbers[round_state.END])
                    self._state.numbers[round_state.END] = end
                    continue
                self._sent.stage(position, batch)
            found.append(position)
        self._state.set_again(found)

    def _close_round(self) -> None:
        """Lets workers be free for something else."""
        if self._seats.are_open:
            self._occupation.end()
            self._seats.close()
            for seat, incarnation in enumerate(self._seats.incarnations):
                self._state.free(seat, incarnation)
            self._forget_batches()

    def _abandon_round(self) -> None:
        """Ends what an error has left, or a training that is over."""
        if self._seats.are_open:
            self._occupation.end()
            self._seats.abandon()
        self._source = lambda: None
        key, update = self._state.numbers[[round_state.KEY, round_state.UPDATE]]
        self._state = self._rounds.first_state()
        self._state.numbers[[round_state.KEY, round_state.UPDATE]] = key, update
        self._forget_batches()
        if self._sent is not None:
            self._sent.clear()

    def _forget_batches(self) -> None:
        self._rounds.clear()
        self._update.contributions.clear()

    def _graph_of(self, number: int) -> Callable:
        """Returns what makes updates, each of `number` batches."""
        if number not in self._of_number:
            self._step_watch.expect_trace()

            def make(num_updates: Any, vector: Any, said: Any, *tokens: Any) -> Any:
                return self._rounds.updates(
                    num_updates,
                    vector,
                    said,
                    tokens,
                    num_to_aggregate=number,
                    update=self._update.make,
                    drop=self._update.contributions.drop,
                )

            with self._strategy.scope(), coordinator_adapter.traced_for_workers(self._strategy):
                self._of_number[number] = graph_function(make).get_concrete_function(
                    tf.TensorSpec([], tf.int64),
                    tf.TensorSpec(self._state.vector().shape, tf.int64),
                    self._rounds.said,
                    *self._seats.tokens,
                )
        return self._of_number[number]
