"""Notes how far each call has come on each server, so that nothing of a lost one counts twice.

A worker that is lost has made some of the steps of its call, on one parameter server perhaps one
more than on another. With the gradients of every step comes the number of the step, and is noted
before they are applied; so it is with what is counted, at the end of the call. What is left of the
call is then made again, each part where it is missing:

    done = ledger.close(attempt)        # on the chief, after the loss
    with ledger.tracing(done):              # in the function that runs on another worker
        with ledger.at_step(step):
            ledger.is_due(update=0)     # by parameter server

A worker counts its calls itself: to send it the number of each would take longer than the note.
One that was given up and comes back finds its call closed: it ends with an error, not with a note.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import coordinator_adapter, scopes, variable_adapter
from kerasdist.training.context import deployment

# A number in the ledger consists of, from the lowest: update of the step, step of the call, call.
_STEP = 1 << 8
_CALL = 1 << 32
# A worker keeps its row and the number of its call.
_ROW_AND_NUMBER = tf.TensorSpec([2], tf.int64)
# Stands in place of a step where the counts of the call have arrived, too.
ALL = _CALL - 1
# The error of a worker that comes back to a closed call names this.
CLOSED = "this_call_was_given_up_and_others_make_the_rest_of_it"
# How long a note may take that has found its call open; far more than it does, also where every
# core of a parameter server is busy.
_SETTLE_SECS = 1.0


class _RowsOfCalls:
    """Which calls and workers have the rows of the ledger.

    A worker keeps its row from call to call, and adds 1 to the number, until one of them fails.
    That call then keeps the row until it is closed.

    Args:
        num_calls: How many calls each row has had; counted on here.
    """

    def __init__(self, num_calls: list[int]):
        self._num_calls = num_calls
        self._free = collections.deque(range(len(num_calls)))
        self._of_workers: dict[int, int] = {}
        self._lock = threading.Lock()

    def take(self, worker: int, kept: int | None) -> tuple[int, int, bool]:
        """Takes the row of a worker, or another one.

        Args:
            worker: Index of the worker.
            kept: The row that the call has already, of another worker.

        Returns:
            The row, the number that the call has in it, and whether the worker knows them.
        """
        with self._lock:
            row = self._of_workers.pop(worker, None)
            is_known = row is not None
            if row is None:
                row = self._free.popleft() if kept is None else kept
            elif kept is not None:
                self._free.append(kept)
            self._num_calls[row] += 1
            return row, self._num_calls[row], is_known

    def leave(self, worker: int, row: int) -> None:
        """Leaves a row to a worker, which has done what was called."""
        with self._lock:
            self._of_workers[worker] = row

    def free(self, row: int) -> None:
        """Gives back the row of a lost call."""
        with self._lock:
            self._free.append(row)


class CallAttempt(coordinator_adapter.Attempt):
    """A call that a worker makes once at most; see `Ledger.attempt`.

    Attributes:
        call: Its row and number in the ledger, once it is begun.
    """

    refusal = CLOSED

    def __init__(self, rows: _RowsOfCalls, name: str):
        super().__init__()
        self.call: tuple[int, int] | None = None
        self._rows, self._name = rows, name

    def begin(self, worker: int) -> None:
        """Takes a row; tells the worker where it does not know."""
        with self._lock:
            if self.is_lost:
                raise tf.errors.InvalidArgumentError(None, None, CLOSED)
            kept = self.call[0] if self.call else None
            row, number, is_known = self._rows.take(worker, kept)
            self.call = row, number
        if not is_known:
            variable_adapter.note_worker_numbers(self._name, [row, number - 1])

    def succeed(self) -> None:
        """Leaves the row to the worker."""
        assert self.call is not None and self.worker is not None
        self._rows.leave(self.worker, self.call[0])

    def free_row(self) -> None:
        """Gives the row to others; the call is closed."""
        assert self.call is not None
        self._rows.free(self.call[0])


class Ledger:
    """The steps that each parameter server has taken of the calls that run.

    Args:
        devices: Of the parameter servers.
        num_rows: One for each call that can be on its way or lost, and one for each worker.
        sleep: Waits so many seconds.

    Attributes:
        devices: As variables name them, in order.
    """

    def __init__(
        self, devices: list[str], num_rows: int, *, sleep: Callable[[float], object] = time.sleep
    ):
        self._sleep = sleep
        self._name = variable_adapter.unique_name()
        self._num_calls = [0] * num_rows
        self._rows_of_calls = _RowsOfCalls(self._num_calls)
        self._rows: dict[str, Any] = {}
        self._closed: dict[str, Any] = {}
        self._call: Any = None  # While a call is traced: what `write` takes before its first step.
        self._done: Any = None  # Likewise, in one that is made again.
        self._step: Any = None  # While a step is traced.
        with scopes.outside_scopes():
            for device in devices:
                with tf.device(device):
                    rows, closed = (
                        tf.Variable(tf.zeros([num_rows], tf.int64), trainable=False)
                        for _ in range(2)
                    )
                self._rows[rows.device], self._closed[rows.device] = rows, closed
        self.devices = list(self._rows)

    def restart(self) -> None:
        """Begins anew, when no call is on its way but those that were given up."""
        self._rows_of_calls = _RowsOfCalls(self._num_calls)

    def attempt(self) -> CallAttempt:
        """Returns an attempt at a call."""
        return CallAttempt(self._rows_of_calls, self._name)

    def close(self, attempt: CallAttempt) -> np.ndarray:
        """Lets nothing more of a lost call count.

        Returns:
            How far it has come on each parameter server: int64 [ps], 0 before a step.
        """
        if attempt.call is None:  # Refused before it has begun.
            return np.zeros(len(self.devices), np.int64)
        row, number = attempt.call
        for device, closed in self._closed.items():
            with tf.device(device):
                tf.raw_ops.ResourceScatterMax(
                    resource=closed.handle, indices=row, updates=number * _CALL + ALL
                )
        found = self._read(attempt.call)
        while True:
            self._sleep(_SETTLE_SECS)
            before, found = found, self._read(attempt.call)
            if (before == found).all():
                attempt.free_row()
                return found

    def _read(self, call: tuple[int, int]) -> np.ndarray:
        row, number = call
        values = np.array([each.numpy()[row] for each in self._rows.values()], np.int64)
        return np.where(values // _CALL == number, values % _CALL, 0)

    # What follows is traced by the chief and runs on a worker.

    @contextlib.contextmanager
    def tracing(self, done: tf.Tensor | None = None) -> Generator[None]:
        """Traces the steps of a call, in the function of an `attempt`.

        Args:
            done: int64 [ps], what is done already; None in a call that is made for the first time.
        """
        with tf.device("/device:CPU:0"):
            numbers = variable_adapter.worker_variable(_ROW_AND_NUMBER, self._name)
            numbers.assign_add([0, 1])
            self._call = numbers.read_value() * [1, _CALL]
        self._done = done
        try:
            yield
        finally:
            self._call = self._done = None

    @contextlib.contextmanager
    def at_step(self, step: tf.Tensor | int) -> Generator[None]:
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

    def note(self, update: int) -> tf.Tensor:
        """Returns what `write` takes to note that an update of this step has arrived: int64 [2].

        Raises:
            ValueError: There is no number for it.
        """
        if update + 1 > _STEP:
            raise ValueError(
                f"A step makes more than {_STEP} updates, which parameter servers cannot note. "
                "Update more variables at once: let a MultiOptimizer give several to one optimizer."
            )
        before = self._call + self._step * [0, _STEP]
        return tf.add(before, [0, update + 1])

    def note_of_counts(self) -> tf.Tensor:
        """Returns what `write` takes to note that the counts of the call have arrived."""
        return tf.add(self._call, [0, ALL])

    def write(self, device: str, note: tf.Tensor) -> tf.Operation:
        """Notes something at a parameter server, where it has arrived; fails in a closed call."""
        with tf.device(device):
            row, value = tf.unstack(note)
            closed = tf.raw_ops.ResourceGather(
                resource=self._closed[device].handle, indices=row, dtype=tf.int64
            )
            # Not an Assert, which TensorFlow orders with all else that has a state: that is on the
            # worker, and costs two messages.
            row = tf.where(closed < value, row, -1)
            return tf.raw_ops.ResourceScatterMax(
                resource=self._rows[device].handle, indices=row, updates=value, name=CLOSED
            )

    def is_due(self, update: int) -> dict[str, tf.Tensor]:
        """Returns by device whether an update of this step is still to be made: bool scalars."""
        number = self._step * _STEP + update
        return dict(zip(self.devices, tf.unstack(self._done <= number), strict=True))

    def are_counts_due(self, device: str) -> tf.Tensor:
        """Returns whether a parameter server waits for the counts of this call: bool scalar."""
        return self._done[self.devices.index(device)] < ALL


def devices_of(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the devices of the parameter servers, which keep the notes of a ledger."""
    tasks = range(len(deployment.of(strategy).cluster.jobs["ps"]))
    return [f"/job:ps/task:{task}/device:CPU:0" for task in tasks]


def of_step(done: np.ndarray, step: int) -> np.ndarray:
    """Returns how far one step of a call has come, as that of a call of one step.

    Args:
        done: How far the call has come, as `Ledger.close` returns it.
        step: Which one, from 0.
    """
    updates = np.clip(done - step * _STEP, 0, _STEP)
    return np.where(done == ALL, ALL, updates)
