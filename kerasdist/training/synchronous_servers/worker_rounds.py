"""Traces the graph of a synchronous worker: steps whose gradients are staged."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.training.context import deployment
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.parameter_servers.data_source import WorkerDataSource
from kerasdist.training.parameter_servers.worker_steps import (
    WorkerSteps,
    not_negative,
    repeat,
    skip,
)
from kerasdist.training.synchronous_servers import server_calls
from kerasdist.training.synchronous_servers.round_state import AGAIN, NEXT, SENT
from kerasdist.training.synchronous_servers.rounds import Rounds
from kerasdist.training.synchronous_servers.sent_batches import BatchForm, SentBatches
from kerasdist.training.synchronous_servers.server_calls import Parcel, Reads
from kerasdist.training.synchronous_servers.staged_update import StagedUpdate


class WorkerRounds(WorkerSteps):
    """The graphs of synchronous workers.

    Args: those of `WorkerSteps`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._reads: list[Reads] = []  # Of the graphs: what they read is there as long as these.

    def in_rounds(
        self,
        rounds: Rounds,
        update: StagedUpdate,
        *,
        data: WorkerDataSource,
        sent: SentBatches | None,
        keeps_batches: bool,
    ) -> Callable:
        """Returns what runs steps whose gradients are staged, until it is told to stop.

        Args:
            rounds: They say at which positions.
            update: The rest of the steps, which another task makes.
            data: Where batches come from.
            sent: Those that the chief sends, if it can.
            keeps_batches: Whether a worker may have to compute the same batch again.

        Returns:
            A function of four numbers (the generation of the data, seat, incarnation, and that of
            the queue of the seat), and, if workers read the data, of the iterator.
        """
        trace = functools.partial(self._steps_in_rounds, rounds, update, data, sent, keeps_batches)
        return graph_function(trace)

    def _replica_of(self, position: tf.Tensor) -> tf.Tensor:
        # On whichever worker, and however often, a batch is computed with the same numbers.
        number = deployment.remote_workers(self._strategy).num_to_aggregate
        return tf.math.floormod(position, tf.cast(number, position.dtype))

    def of_given(self, update: StagedUpdate) -> Callable:
        """Returns what stages the step of a batch that it is given, to look at its trace."""
        return graph_function(functools.partial(self._stage_given, update))

    def _stage_given(self, update: StagedUpdate, batch: Any) -> None:
        with self._ledger.tracing(), self._data_waits.noted():
            zero: Any = tf.constant(0, tf.int64)
            update.stage(zero, functools.partial(self._traced_step, 0, zero, batch))

    def _steps_in_rounds(
        self,
        rounds: Rounds,
        update: StagedUpdate,
        data: WorkerDataSource,
        sent: SentBatches | None,
        keeps_batches: bool,
        numbers: tf.Tensor,
        iterator: Any = None,
    ) -> None:
        generation, seat, incarnation, tokens = tf.unstack(numbers)
        form = BatchForm(data.element_spec or iterator.element_spec[1])
        may_end = data.is_strict and not data.is_counted
        reads = Reads([*update.states.remote, *(self._copies.remote if self._copies else [])])
        self._reads.append(reads)

        def contribute(*given: Any) -> tuple:
            with self._model_step.times.of_batch(self._optimizers):
                return contribute_timed(*given)

        def contribute_timed(
            key: tf.Tensor, position: Any, kind: Any, read: list, memory: tuple
        ) -> tuple:
            sources = self._sources_of(data, iterator, form, sent, position, memory)
            progress, has_batch, *tensors = _chosen(kind, sources)
            self._note_progress(generation, progress)  # For the next round.
            fetch = reads.fetched(rounds.device, read)

            def compute() -> tuple:
                batch = form.batch_of(tensors)
                step = functools.partial(self._traced_step, 0, position, batch, fetch=fetch)
                return update.stage(key, step, fetch=fetch)

            if may_end:
                ended, parcel = _if(has_batch, rounds.device, compute), Parcel()
            else:
                ended, parcel = compute()
            return ended, parcel, has_batch, [progress, *(tensors if keeps_batches else [])]

        with self._ledger.tracing(), self._data_waits.noted():
            memory = self._first_memory(generation, form, keeps_batches)
            rounds.work(tokens, seat, incarnation, contribute, memory=memory, reads=reads)

    def _sources_of(
        self,
        data: WorkerDataSource,
        iterator: Any,
        form: BatchForm,
        sent: SentBatches | None,
        position: Any,
        memory: tuple,
    ) -> list[tuple[int, Callable]]:
        """Returns what reads the batch of a position, by the kind of its token.

        Each returns how far the iterator is then, whether there is a batch, and its tensors.
        """
        progress, *kept = memory
        sources = [
            (
                NEXT,
                data.is_on_workers
                and (lambda: self._next_of(data, iterator, form, position, progress)),
            ),
            (AGAIN, kept and (lambda: [progress, True, *kept])),
            (SENT, sent and (lambda: [progress, True, *sent.read(position)])),
        ]
        return [(kind, read) for kind, read in sources if callable(read)]

    def _first_memory(
        self, generation: tf.Tensor, form: BatchForm, keeps_batches: bool
    ) -> tuple[list, list]:
        """Returns what a worker remembers when it begins, and what is known of it later."""
        # How far it has read is a part of it: what one pass of a loop notes in a variable, the next
        # one may read too early.
        progress, spec = self._progress_of(generation), tf.TensorSpec([], tf.int64)
        if not keeps_batches:
            return [progress], [spec]
        return [progress, *form.nothing()], [spec, *form.specs]

    def _next_of(
        self, data: WorkerDataSource, iterator: Any, form: BatchForm, position: Any, progress: Any
    ) -> list:
        """Reads on to a position, where batches have any.

        Returns:
            How far the iterator is then, whether there is a batch, and its tensors.
        """
        if not data.is_strict:
            _, batch = self._next(iterator)
            return [progress, True, *form.tensors_of(batch)]
        num_skipped = not_negative(position - progress)
        if data.is_counted:
            skip(iterator, num_skipped)
            _, batch = self._next(iterator)
            return [position + 1, True, *form.tensors_of(batch)]
        repeat(num_skipped, lambda _: iterator.get_next_as_optional())
        element: Any = self._of_input(iterator.get_next_as_optional)
        has_batch = element.has_value()
        tensors = tf.cond(has_batch, lambda: form.tensors_of(element.get_value()[1]), form.nothing)
        return [position + 1, has_batch, *tensors]


def _chosen(kind: tf.Tensor, sources: list) -> list:
    """Returns what the source of a kind reads."""
    (first, read), *others = sources
    if not others:
        return read()
    return tf.cond(tf.equal(kind, first), read, lambda: _chosen(kind, others))


def _if(is_due: tf.Tensor, device: str, act: Callable[[], tuple]) -> list:
    def acted() -> Any:
        ended, parcel = act()
        with tf.control_dependencies([*ended, *server_calls.deliver(device, parcel)]):
            return tf.constant(True)

    return [tf.cond(is_due, acted, lambda: tf.constant(False)).op]
