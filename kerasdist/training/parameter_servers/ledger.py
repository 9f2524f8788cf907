"""How far each call has come on each parameter server, so that nothing of a lost one counts twice.

A worker that is lost has made some of the steps of its call, on one parameter server perhaps one
more than on another. With the gradients of every step comes the number of the step, and is noted
before they are applied; so it is with what is counted, at the end of the call. What is left of the
call is then made again, each part where it is missing:

    done = ledger.close(call)           # on the chief, after the loss
    with ledger.tracing(numbers, done):     # in the function that runs on another worker
        with ledger.at_step(step):
            ledger.is_due(update=0)     # by parameter server

A worker that was silent and comes back finds its call closed, and ends with an error instead of a
note.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import tensorflow_adapter

# Of a number in the ledger, from the lowest: update of the step, step of the call, the call.
_STEP = 1 << 8
_CALL = 1 << 32
# In place of a step: the counts of the call have arrived, too.
ALL = _CALL - 1
# What a worker hears that comes back to it.
CLOSED = "This call was given up, and others make the rest of it."
# How long a note may take that has found its call open; far more than it does.
_SETTLE_SECS = 0.2


class Ledger:
    """The steps that each parameter server has taken of the calls that run.

    Args:
        devices: Of the parameter servers.
        num_rows: How many calls can be on their way.
        sleep: Waits so many seconds.

    Attributes:
        devices: As variables name them, in order.
    """

    def __init__(
        self, devices: list[str], num_rows: int, *, sleep: Callable[[float], object] = time.sleep
    ):
        self._num_rows = num_rows
        self._sleep = sleep
        self._num_calls = self._num_rows_taken = 0
        self._rows: dict[str, Any] = {}
        self._closed: dict[str, Any] = {}
        self._numbers: Any = None  # While a call is traced: its row and its number.
        self._done: Any = None  # Likewise, in one that is made again.
        self._step: Any = None  # While a step is traced.
        with tensorflow_adapter.outside_scopes():
            for device in devices:
                with tf.device(device):
                    # One more for calls that are made again, one after the other.
                    rows, closed = (
                        tf.Variable(tf.zeros([num_rows + 1], tf.int64), trainable=False)
                        for _ in range(2)
                    )
                self._rows[rows.device], self._closed[rows.device] = rows, closed
        self.devices = list(self._rows)

    def next_call(self, *, again: bool = False) -> tuple[int, int]:
        """Returns the row and the number of a call that is about to begin."""
        self._num_calls += 1
        if again:
            return self._num_rows, self._num_calls
        self._num_rows_taken += 1
        return self._num_rows_taken % self._num_rows, self._num_calls

    def close(self, call: tuple[int, int]) -> np.ndarray:
        """Lets nothing more of a call count.

        Args:
            call: Of `next_call`; its worker is lost.

        Returns:
            How far it has come on each parameter server: int64 [ps], 0 before a step.
        """
        row, number = call
        for device, closed in self._closed.items():
            with tf.device(device):
                tf.raw_ops.ResourceScatterMax(
                    resource=closed.handle, indices=row, updates=number * _CALL + ALL
                )
        found = self._read(call)
        while True:
            self._sleep(_SETTLE_SECS)
            before, found = found, self._read(call)
            if (before == found).all():
                return found

    def _read(self, call):
        row, number = call
        values = np.array([each.numpy()[row] for each in self._rows.values()], np.int64)
        return np.where(values // _CALL == number, values % _CALL, 0)

    # What follows is traced by the chief and runs on a worker.

    @contextlib.contextmanager
    def tracing(self, call, done=None) -> Generator[None]:
        """Traces the steps of a call.

        Args:
            call: int64 [2], of `next_call`.
            done: int64 [ps], what is done already; None in a call that is made for the first time.
        """
        self._numbers, self._done = tf.unstack(call), done
        try:
            yield
        finally:
            self._numbers = self._done = None

    @contextlib.contextmanager
    def at_step(self, step) -> Generator[None]:
        """Traces a step of the call, from 0."""
        self._step = tf.cast(step, tf.int64)
        try:
            yield
        finally:
            self._step = None

    @property
    def is_again(self) -> bool:
        """Whether the call that is traced is made again."""
        return self._done is not None

    def note(self, update: int):
        """Returns what `write` takes to note that an update of this step has arrived: int64 [2]."""
        return self._note(self._step * _STEP + update + 1)

    def note_of_counts(self):
        """Returns what `write` takes to note that the counts of the call have arrived."""
        return self._note(tf.constant(ALL, tf.int64))

    def write(self, device: str, note) -> tf.Operation:
        """Notes something at a parameter server, where it has arrived; fails in a closed call."""
        with tf.device(device):
            row, value = tf.unstack(note)
            closed = tf.raw_ops.ResourceGather(
                resource=self._closed[device].handle, indices=row, dtype=tf.int64
            )
            is_open = tf.raw_ops.Assert(condition=closed < value, data=[CLOSED])
            with tf.control_dependencies([is_open]):
                return tf.raw_ops.ResourceScatterMax(
                    resource=self._rows[device].handle, indices=row, updates=value
                )

    def is_due(self, update: int) -> dict:
        """Returns by device whether an update of this step is still to be made: bool scalars."""
        number = self._step * _STEP + update
        return dict(zip(self.devices, tf.unstack(self._done <= number), strict=True))

    def are_counts_due(self, device: str):
        """Returns whether a parameter server waits for the counts of this call: bool scalar."""
        return self._done[self.devices.index(device)] < ALL

    def _note(self, progress):
        row, number = self._numbers
        return tf.stack([row, number * _CALL + progress])


def devices_of(strategy) -> list[str]:
    """Returns the devices of the parameter servers, which keep the notes of a ledger."""
    tasks = range(len(strategy.served_cluster.jobs["ps"]))
    return [f"/job:ps/task:{task}/device:CPU:0" for task in tasks]


def of_step(done: np.ndarray, step: int) -> np.ndarray:
    """Returns how far one step of a call has come, as that of a call of one step.

    Args:
        done: How far the call has come, as `Ledger.close` returns it.
        step: Which one, from 0.
    """
    updates = np.clip(done - step * _STEP, 0, _STEP)
    return np.where(done == ALL, ALL, updates)
