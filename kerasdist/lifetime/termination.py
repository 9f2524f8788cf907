"""Notes TERM, which is answered later, when it can be answered well.

Python calls a handler between two of its own instructions: never, in a step that TensorFlow does
not come back from, such as one that waits for data. A second TERM therefore ends the process from
a thread, which hears of signals by the file descriptor that Python's C code writes them to.
"""

import ctypes
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

from kerasdist.support import memory
from kerasdist.support.exit_codes import SIGNALED
from kerasdist.support.terminal import say

# One TERM for a group of processes can come twice: a launcher passes on its own.
_APART_SECS = 3.0
_MOST_BYTES_OF_ACTION = 1024  # A `struct sigaction` has 152 or fewer.


class Termination:
    """Notes that this process was told to end, instead of ending it at once.

    Attributes:
        is_asked_for: Whether TERM has come since `watch`.
    """

    def __init__(self):
        self.is_asked_for = False
        self._before = None
        self._is_watching = False
        self._write_end: int | None = None

    def watch(self) -> None:
        """Begins to note TERM; only the main thread of a program can."""
        self.is_asked_for = False
        if self._is_watching or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.signal(signal.SIGTERM, self._note)
        self._is_watching = True
        memory.PROCESS.terminations.append(self)
        _register_at_fork()
        self._listen()

    def unwatch(self) -> None:
        """Lets TERM do again what it did before."""
        if not self._is_watching:
            return
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        self._is_watching = False
        memory.PROCESS.terminations.remove(self)
        if self._write_end is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._write_end)  # The thread reads that this was all, and ends.
            self._write_end = None

    def forget_in_child(self) -> None:
        """Lets TERM end a process that this one has forked, and be no news here.

        It has the handler, and the same end of the pipe: the workers of a pool are told to end so.
        """
        self._is_watching = False
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        if self._write_end is not None:
            signal.set_wakeup_fd(-1)
            self._write_end = None

    def _note(self, *_: object):
        self.is_asked_for = True

    def _listen(self) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if before != -1:  # An event loop, as in notebooks, has it: a kernel ends in other ways.
            signal.set_wakeup_fd(before)
            os.close(read_end)
            os.close(write_end)
            return
        self._write_end = write_end
        threading.Thread(target=_end_at_second, args=(read_end,), daemon=True).start()


class TerminationKept:
    """A context that restores the handler of SIGTERM.

    TensorFlow takes over the signal when a strategy over several workers is made, and then does
    nothing with it. The C library restores it also in a thread, where `signal.signal` does not.
    """

    def __enter__(self):
        self._action = ctypes.create_string_buffer(_MOST_BYTES_OF_ACTION)
        ctypes.CDLL(None).sigaction(signal.SIGTERM, None, self._action)

    def __exit__(self, *error: object):
        ctypes.CDLL(None).sigaction(signal.SIGTERM, self._action, None)


@functools.cache
def _register_at_fork() -> None:
    os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    while memory.PROCESS.terminations:
        memory.PROCESS.terminations.pop().forget_in_child()


def _end_at_second(read_end: int) -> None:
    with open(read_end, "rb", buffering=0) as pipe:
        if is_repeated(iter(lambda: pipe.read(1), b""), time.monotonic):
            say(
                "Received SIGTERM again: this process ends now, in the middle of a step and "
                "without a checkpoint of it."
            )
            os._exit(SIGNALED + signal.SIGTERM)


def is_repeated(signals: Iterable[bytes], clock: Callable[[], float]) -> bool:
    """Returns whether SIGTERM comes again, some seconds after the first one.

    Args:
        signals: The number of each signal, as a byte, when it comes.
        clock: Returns seconds.
    """
    first = None
    for number in signals:
        if number[0] != signal.SIGTERM:
            continue
        if first is None:
            first = clock()
        elif clock() - first >= _APART_SECS:
            return True
    return False
