"""Gives out batches to workers, and makes each update of the first ones that come back.

Each worker has a seat, with a queue of its own. The chief puts a token for a batch into it. The
worker computes, stages what comes of it (`contributions`), and says so in a queue that all have in
common. The chief makes an update of exactly as many fresh batches as it aggregates, and then gives
out others. A batch that was computed with older weights is dropped, and its worker computes it
again: it is in an update in the end.

All queues are on a parameter server. They carry numbers alone:

    token: key (no other token has it; below 0 lets the worker stop), position of the batch, and
           where the worker finds it
    said:  what (it begins, it has computed its batch, it has found none), seat, incarnation

Each worker that takes a seat is another incarnation of it, with another queue after a loss. What a
worker says that was given up, and comes back, is not heard; its queue tells it to stop.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import variable_adapter
from kerasdist.training.synchronous_servers import round_state, server_calls
from kerasdist.training.synchronous_servers.round_state import RoundState
from kerasdist.training.synchronous_servers.server_calls import Parcel, Reads, Shelf

_STOP = -1
_NUM_NUMBERS = 3  # Of a token, and of what a worker says.
_DONE, _HELLO, _END, _INTERRUPT = range(4)


class Rounds:
    """Tokens and answers of synchronous workers.

    Args:
        num_seats: How many workers compute at once.
        num_to_aggregate: How many batches an update is made of, unless fewer are left.
        device: Of the parameter server with the queues.
    """

    def __init__(self, *, num_seats: int, num_to_aggregate: int, device: str):
        self._sizes = {"num_seats": num_seats, "num_to_aggregate": num_to_aggregate}
        self._num_seats, self._num_to_aggregate = num_seats, num_to_aggregate
        self.device = device
        self._queues, self._numbers = Shelf(device), {}
        self.said = self.new_queue()
        self.device = self.said.device  # As variables there name it.

    def new_queue(self) -> tf.Tensor:
        """Returns a queue of tokens, for one worker after the other."""
        with tf.device(self.device):
            queue = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.int64],
                shapes=[[_NUM_NUMBERS]],
                shared_name=variable_adapter.unique_name(),
            )
        self._numbers[queue.ref()] = self._queues.put([queue])
        return queue

    def number_of(self, queue: tf.Tensor) -> int:
        """Returns the number by which a worker names a queue."""
        return self._numbers[queue.ref()]

    def first_state(self) -> RoundState:
        """Returns that of a training before its first batch."""
        return RoundState.first(**self._sizes)

    # What follows is traced by the chief and runs on a worker.

    def work(
        self,
        tokens: tf.Tensor,
        seat: Any,
        incarnation: Any,
        contribute: Callable[..., tuple],
        *,
        memory: tuple[list, list] = ([], []),
        reads: Reads | None = None,
    ) -> None:
        """Computes batches until a token says to stop.

        Args:
            tokens: int64 scalar, the number of the queue of this seat: see `number_of`.
            seat: int64 scalar, which of the workers this is.
            incarnation: int64 scalar, which of those that have had this seat.
            contribute: Called as contribute(key, position, kind, read, memory), where `read` is
                what `reads` gives on the server with the queues; returns what is there when
                what comes of the batch is staged, but for a parcel; this parcel; whether there was
                a batch; and what to remember.
            memory: What it remembers first: tensors, and what is known of later ones, as
                `tf.TensorSpec`s.
            reads: What is read for each batch.
        """
        reads = reads or Reads([])

        def say(what: Any, parcel: Parcel) -> list:
            """Says something, and waits for the next token, in one message."""
            message = tf.stack([tf.cast(what, tf.int64), seat, incarnation, tokens])
            hear = functools.partial(self._hear, parcel.unpack, reads)
            return server_calls.call(self.device, hear, message, *parcel.tensors)

        first = say(_HELLO, Parcel())
        num_heard = len(first)

        def compute(*tensors: Any) -> list:
            token, *read = tensors[:num_heard]
            with tf.control_dependencies([token]):
                ended, parcel, has_batch, memory = contribute(
                    *tf.unstack(token), read, tensors[num_heard:]
                )
            with tf.control_dependencies(ended):
                return [*say(tf.where(has_batch, _DONE, _END), parcel), *memory]

        remembered, specs = memory
        tf.while_loop(
            lambda token, *_: token[0] >= 0,
            compute,
            [*first, *remembered],
            shape_invariants=[each.shape for each in (*first, *specs)],
            parallel_iterations=1,
        )

    def _hear(self, unpack: Callable, reads: Reads, message: tf.Tensor, *tensors: Any) -> list:
        """Passes on what a worker says, and gives it its next token; traced for the server."""
        *said, number = tf.unstack(message)
        with tf.control_dependencies(unpack(*tensors)):
            (queue,) = self._queues.get(self.number_of(self.said))
            done = tf.raw_ops.QueueEnqueueV2(handle=queue, components=[tf.stack(said)])
        with tf.control_dependencies([done]):
            (tokens,) = self._queues.get(number)
            (token,) = tf.raw_ops.QueueDequeueV2(handle=tokens, component_types=[tf.int64])
        with tf.control_dependencies([token]):
            return [tf.ensure_shape(token, [_NUM_NUMBERS]), *reads.on_server(self.device)]

    # What follows runs on the chief; the first is traced.

    def updates(
        self,
        num_updates: Any,
        vector: tf.Tensor,
        said: tf.Tensor,
        tokens: Sequence[tf.Tensor],
        *,
        num_to_aggregate: int,
        update: Callable[[list], object],
        drop: Callable[[tf.Tensor], object],
    ) -> tf.Tensor:
        """Makes updates, each of the batches that come back first.

        Args:
            num_updates: int64 scalar, how many.
            vector: Of a `RoundState`.
            said: `self.said`.
            tokens: The queue of each seat.
            num_to_aggregate: How many batches each update is made of.
            update: Called as update(keys), in the order of the positions of the batches.
            drop: Called as drop(key) for a batch that was computed with older weights.

        Returns:
            What `result_of` reads.
        """
        state = RoundState.of(vector, **self._sizes)
        number = tf.constant(num_to_aggregate, tf.int64)

        def collect(state: RoundState, is_wanted: tf.Tensor) -> RoundState:
            # At first all have something to do; what comes too late is not lost.
            most = tf.maximum(number, self._num_seats)
            is_begun = state.numbers[round_state.NUM_COLLECTED] > 0
            limit = tf.where(is_wanted, tf.where(is_begun, number, most), 0)
            nobody = tf.zeros([self._num_seats], tf.bool)
            state = self._give(state, tokens, limit, nobody)
            wanted = tf.where(is_wanted, number, 0)
            return self._collect(state, said, tokens, wanted, drop)

        def make(num_made: Any, state: RoundState, log: tf.TensorArray) -> tuple:
            batches, state = self._make_one(state, num_to_aggregate, update)
            log = log.write(tf.cast(num_made, tf.int32), batches)
            num_made += 1
            with tf.control_dependencies([state.numbers]):
                return num_made, collect(state, num_made < num_updates), log

        def is_complete(num_made: Any, state: RoundState, _: Any) -> tf.Tensor:
            count = state.numbers[round_state.NUM_COLLECTED]
            return (num_made < num_updates) & tf.equal(count, number)

        size, shape = tf.cast(num_updates, tf.int32), [num_to_aggregate, 2]
        log = tf.TensorArray(tf.int64, size, element_shape=shape)
        start = [tf.zeros([], tf.int64), collect(state, num_updates > 0), log]
        num_made, state, log = tf.while_loop(is_complete, make, start, parallel_iterations=1)
        return tf.concat([[num_made], state.vector(), tf.reshape(log.stack(), [-1])], axis=0)

    def result_of(self, numbers: np.ndarray, number: int) -> tuple[int, RoundState, np.ndarray]:
        """Returns what `updates` has come to.

        Args:
            numbers: What it has returned.
            number: How many batches each of these updates is made of.

        Returns:
            How many updates it has made: fewer than it was asked for after `interrupt`, or where
            fewer batches are left. The state. And position and seat of the batches of each update,
            in order: int64 [updates, batches, 2].
        """
        end = 1 + RoundState.length(**self._sizes)
        num_made = int(numbers[0])
        log = numbers[end:].reshape([-1, number, 2])[:num_made]
        return num_made, RoundState.of(numbers[1:end], **self._sizes), log

    def stop(self, tokens: tf.Tensor) -> None:
        """Lets the worker of a queue stop when it asks for its next token."""
        self._enqueue(tokens, tf.constant([_STOP] * _NUM_NUMBERS, tf.int64))

    def interrupt(self) -> None:
        """Lets `updates` return with what it has made, however long it would wait."""
        self._enqueue(self.said, tf.constant([_INTERRUPT, 0, _STOP], tf.int64))

    def clear(self) -> None:
        """Forgets what workers have said. No `updates` may be running."""
        with tf.device(self.device):
            while int(tf.raw_ops.QueueSizeV2(handle=self.said)) > 0:
                self._dequeue(self.said)

    def _collect(
        self, state: RoundState, said: tf.Tensor, tokens: Sequence, num_wanted: Any, drop: Callable
    ) -> RoundState:
        """Waits for the batches of the next update."""

        def hear(_: Any, state: RoundState) -> tuple:
            message = self._dequeue(said)
            what, seat, _ = tf.unstack(message)
            state, is_stale, old_key = round_state.heard(
                state, message, is_done=tf.equal(what, _DONE), is_end=tf.equal(what, _END)
            )
            tf.cond(is_stale, lambda: drop(old_key), lambda: None)
            is_again = tf.one_hot(seat, self._num_seats, on_value=is_stale, off_value=False)
            state = self._give(state, tokens, num_wanted, is_again)
            is_interrupted = tf.equal(what, _INTERRUPT)
            return ~is_interrupted & round_state.can_collect(state, num_wanted), state

        _, state = tf.while_loop(
            lambda goes_on, _: goes_on,
            hear,
            [round_state.can_collect(state, num_wanted), state],
            parallel_iterations=1,
        )
        return state

    def _make_one(
        self, state: RoundState, num_to_aggregate: int, update: Callable
    ) -> tuple[tf.Tensor, RoundState]:
        """Makes an update; returns position and seat of its batches, too."""
        batches = state.collected[:num_to_aggregate]
        batches = tf.gather(batches, tf.argsort(batches[:, 1]))
        before = len(_operations())
        update(tf.unstack(batches[:, 0]))
        # Whoever reads the weights for the next update reads all of this one.
        with tf.control_dependencies(_stateful(_operations()[before:])):
            state = round_state.next_update(state)
            return batches[:, 1:], RoundState(*map(tf.identity, state))

    def _give(
        self, state: RoundState, queues: Sequence[tf.Tensor], limit: Any, is_again: tf.Tensor
    ) -> RoundState:
        """Gives out tokens to seats that are idle, and to one that is to compute again."""
        state, tokens, gets = round_state.given(state, limit, is_again)
        counts = tf.unstack(tf.cast(gets, tf.int64))
        given = []
        for seat, (queue, count) in enumerate(zip(queues, counts, strict=True)):
            rows = tokens[seat : seat + count]  # None costs less than a condition.
            with tf.device(self.device):
                given.append(tf.raw_ops.QueueEnqueueManyV2(handle=queue, components=[rows]))
        with tf.control_dependencies(given):
            return RoundState(tf.identity(state.numbers), state.seats, state.collected)

    def _enqueue(self, queue: tf.Tensor, numbers: Any) -> tf.Operation:
        with tf.device(self.device):
            return tf.raw_ops.QueueEnqueueV2(handle=queue, components=[numbers])

    def _dequeue(self, queue: tf.Tensor) -> tf.Tensor:
        with tf.device(self.device):
            (numbers,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.int64])
        return tf.ensure_shape(numbers, [_NUM_NUMBERS])


def _operations() -> list:
    return tf.compat.v1.get_default_graph().get_operations()


def _stateful(operations: list) -> list:
    # TensorFlow tells no other way what a function leaves behind.
    return [each for each in operations if each.op_def.is_stateful]
