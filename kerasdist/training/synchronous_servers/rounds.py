"""Gives out batches to workers, and makes each update of the first ones that come back.

The chief gives out tokens, each for a batch. A worker takes a token, computes, stages what comes of
it (`contributions`), and says that it has done so. The chief makes an update of exactly as many
fresh batches as it aggregates, and then gives out as many tokens again. A batch that was computed
with older weights is dropped, and its token goes out again: it is in an update in the end.

Both queues are on a parameter server. They carry numbers alone:

    token: key (no other token has it; below 0 lets a worker stop), position of the batch, update,
           round
    done:  those of the token, and the seat of the worker that has taken it

A round is what workers are called for once. One that was given up and comes back is still in an
older round: what it says is not heard, and a token that it takes it puts back.

Whoever is free takes the next token. So a worker that is slow holds one batch and no more.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from kerasdist.private import variable_adapter

_STOP = -1
_TOKEN, _DONE = 4, 5


class Progress(NamedTuple):
    """How far an epoch is: int64 scalars.

    Attributes:
        key: Of the next token.
        position: Of the next batch.
        end: Behind the last batch.
        update: The number of the next update.
        round: The number of the round, larger than those before.
    """

    key: Any
    position: Any
    end: Any
    update: Any
    round: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What some updates have come to.

    Attributes:
        num_made: The updates: int64 scalar. Fewer than were asked for after `interrupt`.
        progress: How far the epoch is then.
        positions: Of the batches of each update, in order: int64 [updates asked for, batches].
        num_dropped: How many batches of the worker on each seat came too late: int64 [seats].
    """

    num_made: tf.Tensor
    progress: Progress
    positions: tf.Tensor
    num_dropped: tf.Tensor


class _Found(NamedTuple):
    """The batches that have come back for the next update.

    Attributes:
        count: How many; `_STOP` after an interruption.
        batches: Key and position of each: int64 [batches of an update, 2].
        key: Of the next token.
        num_dropped: See `Result`.
    """

    count: Any
    batches: Any
    key: Any
    num_dropped: Any


class Rounds:
    """Tokens and answers of synchronous workers.

    Args:
        num_seats: How many workers compute at once.
        device: Of the parameter server with the queues.
    """

    def __init__(self, *, num_seats: int, device: str):
        self._num_seats, self._device = num_seats, device
        self._name = variable_adapter.unique_name()

    # What follows is traced by the chief and runs on a worker.

    def work(self, seat: Any, number: Any, contribute: Callable[..., list]) -> None:
        """Computes batches until a token says to stop.

        Args:
            seat: int64 scalar, which of the workers this is.
            number: int64 scalar, that of the round.
            contribute: Called as contribute(key, position); returns the operations that have ended
                when all that comes of the batch is staged.
        """

        def compute(token: tf.Tensor) -> tf.Tensor:
            key, position, *_ = tf.unstack(token)
            with tf.control_dependencies([token]):
                staged = contribute(key, position)
            with tf.control_dependencies(staged):
                said = self._enqueue("done", tf.concat([token, [seat]], axis=0))
            with tf.control_dependencies([said]):
                return self._dequeue("tokens")

        def is_mine(token: Any) -> tf.Tensor:
            return tf.equal(token[-1], number)

        (last,) = tf.while_loop(
            lambda token: (token[0] >= 0) & is_mine(token),
            lambda token: [compute(token)],
            [self._dequeue("tokens")],
            parallel_iterations=1,
        )

        def put_back() -> None:
            self._enqueue("tokens", last)

        tf.cond(is_mine(last), lambda: None, put_back)

    # What follows runs on the chief; the first two are traced.

    def begin(self, progress: Progress, num_to_aggregate: int) -> Progress:
        """Gives out the first tokens of an epoch."""
        return self._give(progress, max(num_to_aggregate, self._num_seats))

    def updates(
        self,
        num_updates: Any,
        progress: Progress,
        *,
        num_to_aggregate: int,
        update: Callable[[list], object],
        drop: Callable[[tf.Tensor], object],
    ) -> Result:
        """Makes updates, each of the batches that come back first.

        Args:
            num_updates: int64 scalar, how many.
            progress: How far the epoch is; there are tokens or batches enough.
            num_to_aggregate: How many batches each update is made of.
            update: Called as update(keys), in the order of the positions of the batches.
            drop: Called as drop(key) for a batch that was computed with older weights.
        """
        nothing = tf.zeros([num_to_aggregate, 2], tf.int64)
        zero = tf.zeros_like(progress.key)

        def collect(progress: Progress, num_dropped: tf.Tensor, is_wanted: tf.Tensor) -> _Found:
            start = _Found(zero, nothing, progress.key, num_dropped)
            return self._collect(progress, start, is_wanted, drop)

        def make(num_made: Any, progress: Progress, found: _Found, log: tf.TensorArray) -> tuple:
            positions, progress = self._make_one(progress, found, num_to_aggregate, update)
            log = log.write(tf.cast(num_made, tf.int32), positions)
            num_made += 1
            with tf.control_dependencies([progress.key]):
                found = collect(progress, found.num_dropped, num_made < num_updates)
            return num_made, progress, found, log

        log = tf.TensorArray(
            tf.int64, tf.cast(num_updates, tf.int32), element_shape=[num_to_aggregate]
        )
        found = collect(progress, tf.zeros([self._num_seats], tf.int64), num_updates > 0)
        num_made, progress, found, log = tf.while_loop(
            lambda num_made, _, found, __: (num_made < num_updates) & (found.count >= 0),
            make,
            [zero, progress, found, log],
            parallel_iterations=1,
        )
        return Result(
            num_made=num_made,
            progress=Progress(found.key, *progress[1:]),
            positions=log.stack(),
            num_dropped=found.num_dropped,
        )

    def end(self, number: Any) -> None:
        """Lets every worker of a round stop when it asks for its next token."""
        stop = tf.stack([*[tf.constant(_STOP, tf.int64)] * (_TOKEN - 1), number])
        self._enqueue_all("tokens", tf.tile(stop[tf.newaxis], [self._num_seats, 1]))

    def interrupt(self) -> None:
        """Lets `updates` return with what it has made, however long it would wait."""
        self._enqueue("done", tf.fill([_DONE], tf.constant(_STOP, tf.int64)))

    def clear(self) -> None:
        """Takes back all tokens and answers. No worker and no `updates` may be running."""
        for name in ("tokens", "done"):
            with tf.device(self._device):
                while int(tf.raw_ops.QueueSizeV2(handle=self._queue(name))) > 0:
                    self._dequeue(name)

    def _collect(
        self, progress: Progress, start: _Found, is_wanted: tf.Tensor, drop: Callable
    ) -> _Found:
        """Waits for the batches of the next update."""
        num_wanted = tf.where(is_wanted, tf.cast(start.batches.shape[0], tf.int64), 0)

        def take(count: tf.Tensor, batches: tf.Tensor, key: tf.Tensor, num_dropped: tf.Tensor):
            done = self._dequeue("done")
            done_key, position, update, in_round, seat = tf.unstack(done)
            is_stop, is_known = done_key < 0, tf.equal(in_round, progress.round)
            is_fresh = is_known & tf.equal(update, progress.update)
            is_late = is_known & ~is_fresh

            def again():
                drop(done_key)
                self._enqueue("tokens", tf.stack([key, position, progress.update, in_round]))

            tf.cond(is_late, again, lambda: None)
            late = tf.cast(is_late, tf.int64)
            num_dropped += late * tf.one_hot(seat, self._num_seats, dtype=tf.int64)
            here = tf.one_hot(count, batches.shape[0], dtype=tf.int64)[:, tf.newaxis]
            is_taken = tf.cast(is_fresh, tf.int64)
            batches += is_taken * here * tf.stack([done_key, position])
            count = tf.where(is_stop, tf.constant(_STOP, tf.int64), count + is_taken)
            return _Found(count, batches, key + late, num_dropped)

        return tf.while_loop(
            lambda found: (found.count >= 0) & (found.count < num_wanted),
            lambda found: [take(*found)],
            [start],
            parallel_iterations=1,
        )[0]

    def _make_one(
        self, progress: Progress, found: _Found, num_to_aggregate: int, update: Callable
    ) -> tuple[tf.Tensor, Progress]:
        """Makes an update, and gives out tokens for the next; returns the positions, too."""
        batches = tf.gather(found.batches, tf.argsort(found.batches[:, 1]))
        keys, positions = tf.unstack(batches, axis=1)
        before = len(_operations())
        update(tf.unstack(keys))
        _, position, end, number, in_round = progress
        progress = Progress(found.key, position, end, number + 1, in_round)
        # Whoever reads the weights for the next update reads all of this one.
        with tf.control_dependencies(_stateful(_operations()[before:])):
            return positions, self._give(progress, num_to_aggregate)

    def _give(self, progress: Progress, num_tokens: int) -> Progress:
        """Gives out tokens for so many batches, or for those that are left."""
        key, position, end, update, in_round = progress
        count = tf.minimum(tf.cast(num_tokens, tf.int64), end - position)
        numbers = tf.range(count)
        same = [tf.fill([count], each) for each in (update, in_round)]
        tokens = tf.stack([key + numbers, position + numbers, *same], axis=1)
        given = self._enqueue_all("tokens", tokens)
        with tf.control_dependencies([given]):
            return Progress(key + count, position + count, end, update, in_round)

    def _enqueue(self, name: str, numbers: tf.Tensor) -> tf.Operation:
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueV2(handle=self._queue(name), components=[numbers])

    def _enqueue_all(self, name: str, rows: tf.Tensor) -> tf.Operation:
        with tf.device(self._device):
            return tf.raw_ops.QueueEnqueueManyV2(handle=self._queue(name), components=[rows])

    def _dequeue(self, name: str) -> tf.Tensor:
        with tf.device(self._device):
            (numbers,) = tf.raw_ops.QueueDequeueV2(
                handle=self._queue(name), component_types=[tf.int64]
            )
        return tf.ensure_shape(numbers, [_TOKEN if name == "tokens" else _DONE])

    def _queue(self, name: str) -> tf.Tensor:
        length = _TOKEN if name == "tokens" else _DONE
        return tf.raw_ops.FIFOQueueV2(
            component_types=[tf.int64], shapes=[[length]], shared_name=f"{self._name}_{name}"
        )


def _operations() -> list:
    return tf.compat.v1.get_default_graph().get_operations()


def _stateful(operations: list) -> list:
    # TensorFlow tells no other way what a function leaves behind.
    return [each for each in operations if each.op_def.is_stateful]
