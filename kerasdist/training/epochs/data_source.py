"""Holds an iterator over the user's data, and ends it without a wait if no Python makes the data.

TensorFlow tunes a running iterator from a thread that sleeps for 10 ms, 20 ms, 40 ms and so on, up
to a minute. An iterator that is deleted wakes the thread first and marks itself as ended second;
where the thread is quicker it sees an iterator that has not ended, sleeps on, and the deletion
waits. On two cores that was every third `fit` or epoch, which then took up to twice its time.

Where Python makes the data, the iterator may be in the middle of a call of it. The next one, or the
program, must not make another call at the same time: a generator fails, and a file is read by two.

When Python ends, it ends a thread that asks for its lock, also in the middle of a deletion, which
aborts the process. So no deletion begins any more, and those that run are waited for. Only what the
functions of a distributed dataset were made of has been seen to ask for the lock, on workers; any
other that sleeps on is left to the end of the process.
"""

import _thread
import ctypes
import dataclasses
import time
from typing import Any

from kerasdist.lifetime.process_end import at_end
from kerasdist.support.terminal import announce

# At the end of the process.
_MOST_SECS, _MOST_SECS_OF_DISTRIBUTED, _SILENT_SECS = 0.5, 70.0, 2.0


class _Deletions:
    """Lets go of objects in threads of their own, until Python ends."""

    def __init__(self):
        self._running: dict = {}  # How long each is waited for, by a lock that it holds.
        self._is_over = False
        # Where Python is ending, modules have no contents any more.
        prototype = ctypes.PYFUNCTYPE(None, ctypes.py_object)
        self._keep_for_ever = prototype(("Py_IncRef", ctypes.pythonapi))
        at_end(self.end)  # And not of a process that is forked meanwhile, without the threads.

    def start(self, references: list, most_secs: float) -> None:
        """Lets go of what a list alone refers to; the end of Python waits so long for it."""
        if self._is_over:  # The process takes them along.
            self._keep_for_ever(references)
            return
        done = _thread.allocate_lock()
        done.acquire()
        self._running[done] = most_secs
        try:
            # threading.Thread would wait until the thread runs, in the middle of any other code.
            _thread.start_new_thread(self._run, (references, done))
        except RuntimeError:  # The system has none.
            self._run(references, done)

    def end(self) -> None:
        """Waits for those that run; starts none from now on."""
        self._is_over = True
        start = time.monotonic()
        for done, most_secs in self._running.copy().items():
            has_ended = _has_ended(done, start + min(most_secs, _SILENT_SECS))
            if not has_ended and most_secs > _SILENT_SECS:
                announce(f"Waiting for TensorFlow to end its data, at most {most_secs:g} s.")
                _has_ended(done, start + most_secs)

    def _run(self, references: list, done: _thread.LockType) -> None:
        references.clear()
        self._running.pop(done)
        done.release()


def _has_ended(done: _thread.LockType, until: float) -> bool:
    return done.acquire(timeout=max(0.0, until - time.monotonic()))


@dataclasses.dataclass(kw_only=True, slots=True)
class Progress:
    """What was taken from an iterator; it may be known for longer than that is held.

    Attributes:
        num_iterators: How many were made before it.
        begin: What tf.data keeps of it before its first batch; None where that is not known.
        num_taken: Steps that have had its batches.
        next_size: See `DataSource`.
        is_skipped: Whether it leaves out what was before, of which tf.data then knows nothing.
    """

    num_iterators: int = 0
    begin: bytes | None = None
    num_taken: int = 0
    next_size: Any = None
    is_skipped: bool = False


class DataSource:
    """Holds the only lasting reference to an iterator, and lets it go without a wait.

    Args:
        iterator: Of `tf.data`, of a distributed dataset, or any other; to be used and not kept.
        progress: What was taken from it. Its `next_size` is an int64 scalar, the examples of the
            next global batch, for data of which each worker reads its own part (see
            `file_shards`); None for others.
        is_distributed: Whether its batches have a value for each replica already.
        calls_python: Whether Python makes the data: then it is waited for, as in plain Keras.
    """

    _deletions = _Deletions()

    def __init__(
        self,
        iterator: Any,
        *,
        progress: Progress | None = None,
        is_distributed: bool = False,
        calls_python: bool = False,
    ):
        self.iterator = iterator
        self.progress = progress or Progress()
        self.is_distributed = is_distributed
        self._calls_python = calls_python
        self._most_secs = _MOST_SECS_OF_DISTRIBUTED if is_distributed else _MOST_SECS

    @property
    def next_size(self) -> Any:
        """The examples of the next global batch; or None."""
        return self.progress.next_size

    def note(self, num_taken: int, next_size: Any) -> None:
        """Notes that steps have had its batches, and the size of the next one."""
        self.progress.num_taken += int(num_taken)
        self.progress.next_size = next_size

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator)

    def __del__(self):
        if self._calls_python:
            return
        self._deletions.start([self.__dict__.pop("iterator")], self._most_secs)
