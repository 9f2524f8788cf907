"""The log of a task: the task writes it itself, the launcher reads along.

A task that writes to a file never waits for a slow terminal, and what it wrote is there whatever
becomes of the launcher. Progress bars are drawn over and over in one line, after a carriage return;
what is shown of such a line is its last state.
"""

import os
from pathlib import Path

from kerasdist.launcher import tracebacks
from kerasdist.launcher.foreign_lines import is_foreign

_MOST_BYTES = 1 << 20  # Read at once; the rest follows in the next round.
_TAIL_BYTES = 1 << 16
RESTART_MARK = "--- restart"  # Between what two attempts have written.


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
        data = self._unfinished + self._file.read(_MOST_BYTES)
        *lines, unfinished = data.split(b"\n")
        # The last two states suffice, however long a progress bar runs: one may still be cut off.
        self._unfinished = b"\r".join(unfinished.split(b"\r")[-2:])[-_TAIL_BYTES:]
        return [_visible(line) for line in lines]

    @property
    def unfinished_line(self) -> str:
        """The text after the last complete line, as of the last call of `new_lines`."""
        return _visible(self._unfinished)

    def close(self) -> list[str]:
        """Returns all remaining lines, the unfinished one too, and closes the file."""
        lines = []
        with self._file:
            while new := self.new_lines():
                lines += new
        return [*lines, self.unfinished_line] if self._unfinished else lines


def last_lines(path: Path, num_lines: int = 20) -> list[str]:
    """Returns the end of a log, without TensorFlow's own lines and empty ones at its very end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = [_visible(line) for line in file.read().rstrip().split(b"\n")]
    return [line for line in lines if not is_foreign(line)][-num_lines:]


def error_of(path: Path) -> str:
    """Returns what a program said last, which ended with an error: its exception, or last line."""
    lines = last_lines(path, num_lines=_TAIL_BYTES)
    marks = [number for number, line in enumerate(lines) if line.startswith(RESTART_MARK)]
    lines = lines[marks[-1] + 1 :] if marks else lines
    said = [line for line in lines if line and not tracebacks.is_inside(line)]
    if tracebacks.BEGIN in said:
        # The first line of the last exception's message, which may have many.
        return next(iter(said[len(said) - said[::-1].index(tracebacks.BEGIN) :]), "")
    return said[-1] if said else ""


def _visible(line: bytes) -> str:
    # Keras goes back with backspaces and a carriage return; each suffices.
    states = line.decode(errors="replace").replace("\b", "").split("\r")
    return next((state for state in reversed(states) if state), "")
