"""The log of a task: the task writes it itself, and the launcher reads it meanwhile.

A task that writes to a file never waits for a slow terminal, and what it wrote is there whatever
happens to the launcher. Progress bars are drawn over and over in one line, after a carriage return;
what is shown of such a line is its last state.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from io import BufferedWriter
from pathlib import Path

from kerasdist.processes import tracebacks
from kerasdist.processes.foreign_lines import is_foreign

# absl.app says it after the error, where it does not know a flag.
_HINT_OF_ABSL = "Pass --helpshort or --helpfull to see help on flags."
# kerasdist says so of a late worker, for example. Programs begin lines with "error: ", too.
_OURS = re.compile("error: .+ ends because ")
# How an error of TensorFlow begins that came of a graph, and what it says before the reason.
_OF_GRAPH, _PLACE_IN_GRAPH = "Graph execution error:", "Detected at node "
_MOST_BYTES = 1 << 20  # Read at once; the rest follows in the next round.
_TAIL_BYTES = 1 << 16
RESTART_MARK = "--- restart"  # Between what two attempts have written.
LAUNCH_MARK = "--- launch"  # Before what a later launch has written to the same file.


def make_all(log_dir: Path, paths: Iterable[Path], *, run_id: str) -> contextlib.ExitStack:
    """Makes the logs of a launch, readable only by the user; earlier content stays.

    Args:
        log_dir: Their directory. If it is made here, nobody else may enter it.
        paths: The logs, in `log_dir`.
        run_id: Written before the lines of this launch if the log has earlier ones.

    Returns:
        What keeps other launches out of the directory until it is closed.

    Raises:
        OSError: The directory cannot be written, another launch writes to it, or a log is a link or
            a file of somebody else.
    """
    log_dir.parent.mkdir(parents=True, exist_ok=True)
    log_dir.mkdir(mode=0o700, exist_ok=True)
    lock = _locked(log_dir)
    with contextlib.ExitStack() as undo:
        undo.enter_context(lock)
        _begin_all(paths, run_id)
        undo.pop_all()
    return lock


def _locked(log_dir: Path) -> contextlib.ExitStack:
    """Keeps other launches out: each would take the lines of the other's tasks for its own."""
    lock = contextlib.ExitStack()
    descriptor = os.open(log_dir, os.O_RDONLY | os.O_CLOEXEC)
    lock.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise OSError(error.errno, "another launch that is running writes there") from error
    except OSError:  # The file system has no locks.
        pass
    return lock


def _begin_all(paths: Iterable[Path], run_id: str) -> None:
    for path in paths:
        with open_to_append(path) as file:
            os.fchmod(file.fileno(), 0o600)
            if file.tell():
                file.write(f"{LAUNCH_MARK} {run_id} ---\n".encode())


def open_to_append(path: Path) -> BufferedWriter:
    """Opens a log at its end; if there is none, makes one that only the user can read.

    Raises:
        OSError: It is a link, has other names, belongs to somebody else or is not a file: in a
            directory that others can write to, they choose where a link leads.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, f"{path.name} is a link") from error
        raise
    file = os.fdopen(descriptor, "ab")
    status = os.fstat(descriptor)
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_nlink > 1:
        file.close()
        raise OSError(errno.EEXIST, f"{path.name} is not a file that belongs to you alone")
    return file


def is_full(log_dir: Path) -> bool:
    """Whether the disk of the logs is full."""
    try:
        with tempfile.TemporaryFile(dir=log_dir) as file:
            file.write(bytes(_TAIL_BYTES))
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


class LogReader:
    """Reads what a task adds to its log from now on.

    Args:
        path: The log; it must exist.
    """

    def __init__(self, path: Path):
        self._file = path.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._unfinished = b""

    def new_lines(self) -> list[str]:
        """Returns the lines that were completed since the last call."""
        return self._lines_of(self._file.read(_MOST_BYTES))

    @property
    def unfinished_line(self) -> str:
        """The text after the last complete line, as of the last call of `new_lines`."""
        return _visible(self._unfinished)

    def close(self) -> list[str]:
        """Returns all remaining lines, the unfinished one too, and closes the file."""
        lines = []
        with self._file:
            while data := self._file.read(_MOST_BYTES):
                lines += self._lines_of(data)
        return [*lines, self.unfinished_line] if self._unfinished else lines

    def _lines_of(self, data: bytes) -> list[str]:
        *lines, unfinished = (self._unfinished + data).split(b"\n")
        # The last two states suffice, however long a progress bar runs: one may still be cut off.
        self._unfinished = b"\r".join(unfinished.split(b"\r")[-2:])[-_TAIL_BYTES:]
        return [_visible(line) for line in lines]


def last_lines(path: Path, num_lines: int = 20) -> list[str]:
    """Returns the end of a log, without TensorFlow's own lines and empty ones at its very end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = [_visible(line) for line in file.read().rstrip().split(b"\n")]
    return [line for line in lines if not is_foreign(line)][-num_lines:]


def error_of(path: Path) -> str:
    """Returns what a program that failed said last: its exception, or else its last line."""
    said = _said(path)
    return _exception_in(said) or (said[-1] if said else "")


def exception_of(path: Path) -> str:
    """Returns the exception that a program ended with, or "" if there was none.

    `sys.exit("words")` leaves its words alone, which look like any other line.
    """
    return _exception_in(_said(path))


def _said(path: Path) -> list[str]:
    """Returns what an attempt has written, without the code in tracebacks."""
    lines = last_lines(path, num_lines=_TAIL_BYTES)
    both = (RESTART_MARK, LAUNCH_MARK)
    marks = [number for number, line in enumerate(lines) if line.startswith(both)]
    lines = lines[marks[-1] + 1 :] if marks else lines
    said = [line for line in lines if line and not tracebacks.is_inside(line)]
    return [line for line in said if line != _HINT_OF_ABSL]


def _exception_in(said: list[str]) -> str:
    ends = [
        number
        for number, line in enumerate(said)
        if tracebacks.text_before(line) is not None or _OURS.match(line)
    ]
    if not ends:
        return ""
    # The first line of an exception's message, which may have many.
    last = said[ends[-1] :]
    if _OURS.match(last[0]):
        return last[0]
    error, *more = [*last[1:], ""]
    if not error.endswith(_OF_GRAPH):
        return error
    # TensorFlow says first where in the graph it was.
    reason = next((line for line in more if not line.startswith(_PLACE_IN_GRAPH)), "")
    return f"{error} {reason}".rstrip()


def _visible(line: bytes) -> str:
    # Keras goes back with backspaces and a carriage return; each suffices.
    states = line.decode(errors="replace").replace("\b", "").split("\r")
    return next((state for state in reversed(states) if state), "")
