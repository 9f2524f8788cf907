"""What the chief knows of a round: which batches are where, and which are left.

Its numbers travel as one vector from one graph of the chief to the next, and Python looks at them
in between: `RoundState.of(vector, ...)` divides it, `state.vector()` joins it, of tensors and of
arrays.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# The end of a pass of which nobody knows yet how many batches it has.
UNKNOWN_END = 2**62

# Of `RoundState.numbers`.
KEY, POSITION, END, UPDATE, NUM_COLLECTED, NUM_AGAIN, FRESH_KIND, LOST_KIND = range(8)
NUM_NUMBERS = 8

# The columns of `RoundState.seats`; that of `AGAIN_POSITION` is a list of all seats' and no seat's.
INCARNATION, STATUS, SEAT_KEY, SEAT_POSITION, SEAT_UPDATE, NUM_STALE, AGAIN_POSITION = range(7)
NUM_COLUMNS = 7

# The status of a seat.
ABSENT, IDLE, COMPUTING = range(3)

# Where a worker takes a batch from: its iterator, its own memory, the first parameter server.
NEXT, AGAIN, SENT = range(3)


class RoundState(NamedTuple):
    """A round, as int64 tensors or arrays.

    Attributes:
        numbers: The next key, position and update; the end of the batches; how many are collected
            for this update, and how many are to be given again; where a worker finds a batch that
            is given for the first time, and one that was lost with a worker.
        seats: For each place of a worker [seats, columns] which incarnation it is, its status, the
            key, position and update of its batch, and how many of its batches were too late. In the
            last column, first the positions that are to be given again.
        collected: Key, position and seat of the batches of this update: [batches, 3].
    """

    numbers: Any
    seats: Any
    collected: Any

    @classmethod
    def first(cls, *, num_seats: int, num_to_aggregate: int) -> "RoundState":
        """Returns the state before any batch, with arrays."""
        return cls(
            np.zeros([NUM_NUMBERS], np.int64),
            np.zeros([num_seats, NUM_COLUMNS], np.int64),
            np.zeros([num_to_aggregate, 3], np.int64),
        )

    @staticmethod
    def length(*, num_seats: int, num_to_aggregate: int) -> int:
        """Returns how many numbers the vector has."""
        return NUM_NUMBERS + num_seats * NUM_COLUMNS + num_to_aggregate * 3

    @classmethod
    def of(cls, vector: Any, *, num_seats: int, num_to_aggregate: int) -> "RoundState":
        """Returns the state that a vector holds: tensors of a tensor, copied arrays of an array."""
        end = NUM_NUMBERS + num_seats * NUM_COLUMNS
        parts = vector[:NUM_NUMBERS], vector[NUM_NUMBERS:end], vector[end:]
        shapes = [NUM_NUMBERS], [num_seats, NUM_COLUMNS], [num_to_aggregate, 3]
        if tf.is_tensor(vector):
            return cls(*map(tf.reshape, parts, shapes))
        return cls(*(part.reshape(shape).copy() for part, shape in zip(parts, shapes, strict=True)))

    def vector(self) -> Any:
        """Returns all of it in one."""
        if tf.is_tensor(self.numbers):
            return tf.concat([tf.reshape(each, [-1]) for each in self], axis=0)
        return np.concatenate([each.ravel() for each in self])

    # What follows is of arrays.

    @property
    def num_left(self) -> int:
        """How many batches are in no update yet."""
        num_fresh = max(self.numbers[END] - self.numbers[POSITION], 0)
        held = self.seats[self.seats[:, STATUS] == COMPUTING, SEAT_POSITION]
        num_held = np.count_nonzero(held < self.numbers[END])  # The others will find no batch.
        return int(self.numbers[NUM_COLLECTED] + self.numbers[NUM_AGAIN] + num_fresh + num_held)

    @property
    def again(self) -> list[int]:
        """The positions of batches that were given, and are to be given again."""
        return self.seats[: self.numbers[NUM_AGAIN], AGAIN_POSITION].tolist()

    @property
    def given(self) -> list[int]:
        """The positions of batches that were given and are in no update, between two updates."""
        held = self.seats[self.seats[:, STATUS] == COMPUTING, SEAT_POSITION]
        return sorted([*self.again, *held[held < self.numbers[END]].tolist()])

    @property
    def num_used(self) -> int:
        """How many batches of the pass are in updates, between two updates."""
        return int(min(self.numbers[POSITION], self.numbers[END])) - len(self.given)

    @property
    def late_seats(self) -> list[int]:
        """The seats that compute with weights from before the last update, between two updates."""
        return np.flatnonzero(self.seats[:, STATUS] == COMPUTING).tolist()

    def set_again(self, positions: list[int]) -> None:
        """Sets what is to be given again; never more than there are seats."""
        self.seats[: len(positions), AGAIN_POSITION] = positions
        self.numbers[NUM_AGAIN] = len(positions)

    def free(self, seat: int, incarnation: int) -> None:
        """Gives a seat to another worker, once this one comes; what it holds is given again."""
        row = self.seats[seat]
        if row[STATUS] == COMPUTING and row[SEAT_POSITION] < self.numbers[END]:
            self.set_again(sorted([*self.again, int(row[SEAT_POSITION])]))
        row[[INCARNATION, STATUS]] = incarnation, ABSENT

    def expect_all(self) -> None:
        """Lets seats get batches before their workers come, so that each has as many as others."""
        self.seats[:, STATUS] = IDLE


# What follows is of tensors.


def heard(state: RoundState, message: tf.Tensor, *, is_done: tf.Tensor, is_end: tf.Tensor) -> tuple:
    """Returns the state after a message of a seat's worker, and if its batch was too late.

    Args:
        state: The state.
        message: The kind of the message, seat and incarnation.
        is_done: Whether the worker has computed its batch; else it begins, or
        is_end: it has found no batch, so that the data ends there.

    Returns:
        The state; whether it computes its batch again, which goes to no other; and the key under
        which what is of no use was staged.
    """
    _, seat, incarnation = tf.unstack(message)
    key, position, end, update, count, *rest = tf.unstack(state.numbers)
    row = tf.unstack(state.seats[seat])
    is_known = tf.equal(row[INCARNATION], incarnation)
    is_fresh = is_known & is_done & tf.equal(row[SEAT_UPDATE], update)
    is_stale = is_known & is_done & ~is_fresh
    fresh, stale = tf.cast(is_fresh, tf.int64), tf.cast(is_stale, tf.int64)
    batch = tf.stack([row[SEAT_KEY], row[SEAT_POSITION], seat])
    place = tf.one_hot(
        count, state.collected.shape[0], on_value=fresh, off_value=tf.zeros_like(fresh)
    )
    end = tf.where(is_known & is_end, tf.minimum(end, row[SEAT_POSITION]), end)
    old_key = row[SEAT_KEY]
    status = tf.where(is_stale, tf.constant(COMPUTING, tf.int64), IDLE)
    # A worker that begins may have been given a batch already.
    is_free = tf.reduce_any([is_done, is_end, tf.equal(row[STATUS], ABSENT)])
    row[STATUS] = tf.where(is_known & is_free, status, row[STATUS])
    row[SEAT_KEY] = tf.where(is_stale, key, old_key)
    row[SEAT_UPDATE] = tf.where(is_stale, update, row[SEAT_UPDATE])
    row[NUM_STALE] += stale
    heard_state = RoundState(
        tf.stack([key + stale, position, end, update, count + fresh, *rest]),
        tf.tensor_scatter_nd_update(state.seats, [[seat]], [tf.stack(row)]),
        state.collected + place[:, tf.newaxis] * batch,
    )
    return heard_state, is_stale, old_key


def given(state: RoundState, limit: Any, is_again: tf.Tensor) -> tuple[RoundState, Any, Any]:
    """Gives batches to idle seats.

    Args:
        state: The state.
        limit: How many fresh batches this update may have, collected or on their way.
        is_again: bool [seats], which ones compute the batch that they hold again.

    Returns:
        The state; key, position and kind for each seat: [seats, 3]; and which seats get theirs.
    """
    key, position, end, update, count, num_again, fresh_kind, lost_kind = tf.unstack(state.numbers)
    columns = tf.unstack(state.seats, axis=1)
    status, again = columns[STATUS], columns[AGAIN_POSITION]
    zero, num_seats = tf.zeros_like(key), status.shape[0]
    is_on_way = tf.equal(status, COMPUTING) & tf.equal(columns[SEAT_UPDATE], update)
    num_left = num_again + tf.maximum(end - position, zero)
    num_wanted = limit - count - tf.math.count_nonzero(is_on_way)
    idle = tf.cast(tf.equal(status, IDLE), tf.int64)
    rank = tf.cumsum(idle, exclusive=True)
    takes = tf.equal(idle, 1) & (rank < tf.minimum(num_wanted, num_left))
    num_taken = tf.math.count_nonzero(takes)
    was_lost = rank < num_again
    places = tf.where(was_lost, tf.gather(again, rank), position + rank - num_again)
    columns[STATUS] = tf.where(takes, tf.constant(COMPUTING, tf.int64), status)
    columns[SEAT_KEY] = tf.where(takes, key + rank, columns[SEAT_KEY])
    columns[SEAT_POSITION] = tf.where(takes, places, columns[SEAT_POSITION])
    columns[SEAT_UPDATE] = tf.where(takes, update, columns[SEAT_UPDATE])
    num_lost = tf.minimum(num_taken, num_again)
    columns[AGAIN_POSITION] = tf.roll(again, -num_lost, 0)
    kinds = tf.where(was_lost, lost_kind, fresh_kind)
    kinds = tf.where(is_again, tf.constant(AGAIN, tf.int64), kinds)
    numbers = [key + num_taken, position + num_taken - num_lost, end, update, count]
    numbers += [num_again - num_lost, fresh_kind, lost_kind]
    after = RoundState(tf.stack(numbers), tf.stack(columns, axis=1), state.collected)
    tokens = tf.stack([columns[SEAT_KEY], columns[SEAT_POSITION], kinds], axis=1)
    assert tokens.shape[0] == num_seats
    return after, tokens, takes | is_again


def can_collect(state: RoundState, num_wanted: Any) -> tf.Tensor:
    """Whether there are as many batches as an update wants; and it wants more."""
    count = state.numbers[NUM_COLLECTED]
    is_held = tf.equal(state.seats[:, STATUS], COMPUTING)
    is_there = state.seats[:, SEAT_POSITION] < state.numbers[END]
    num_held = tf.math.count_nonzero(is_held & is_there)
    num_fresh = tf.maximum(state.numbers[END] - state.numbers[POSITION], 0)
    num_left = count + state.numbers[NUM_AGAIN] + num_fresh + num_held
    return (count < num_wanted) & (num_left >= num_wanted)


def next_update(state: RoundState) -> RoundState:
    """Returns the state after an update, with nothing collected."""
    key, position, end, update, _, *rest = tf.unstack(state.numbers)
    numbers = tf.stack([key, position, end, update + 1, tf.zeros_like(key), *rest])
    return RoundState(numbers, state.seats, tf.zeros_like(state.collected))
