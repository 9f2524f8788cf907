"""The screen: lines with their task in front, and the chief's progress bar below them."""

import io
import os
import select
from collections.abc import Callable, Sequence
from typing import TextIO

from kerasdist.cluster import Task
from kerasdist.processes.foreign_lines import ForeignLines, is_foreign
from kerasdist.processes.tracebacks import Tracebacks

_CLEAR_ROW = "\r\x1b[K"
# A bar that is longer than the row must be cut: it could not be drawn over otherwise.
_WITHOUT_WRAPPING = "\x1b[?7l{}\x1b[0m\x1b[?7h"
_NUM_COLORS = 6  # They are 31, red, to 36, cyan.


class Console:
    """Writes the lines of all tasks to one stream.

    Args:
        stream: Where to write; colors and progress bars appear only if it is a terminal, and not a
            dumb one. None if the launcher was started without a stdout, as some daemons are.
        tasks: All tasks; the unfinished lines of the first, the chief, are shown too.
    """

    def __init__(self, stream: TextIO | None, tasks: Sequence[Task]):
        self._stream = stream
        self._chief = tasks[0]
        # What a program has put in the place of sys.stdout may have `write` and `flush` alone.
        is_terminal = hasattr(stream, "isatty") and stream.isatty()
        # A dumb one, such as that of an editor, shows the codes of colors and of a bar as text.
        self._is_terminal = is_terminal and os.environ.get("TERM") != "dumb"
        self._prefixes = _prefixes(
            tasks, in_color=self._is_terminal and not os.environ.get("NO_COLOR")
        )
        self._foreign_lines = ForeignLines()
        self._tracebacks = Tracebacks()
        self._progress = ""

    def shows_bar_of(self, task: Task) -> bool:
        """Whether a progress bar of the task is shown while it is drawn."""
        return self._is_terminal and task == self._chief

    def say(self, text: str) -> None:
        """Writes lines of the launcher itself."""
        for line in text.splitlines():
            self._write_line(line)

    def show_line(self, task: Task, line: str) -> None:
        """Writes a complete line of a task, unless it is TensorFlow's own."""
        if not self._foreign_lines.hide(line):
            self._show(task, self._tracebacks.add(task, line))

    def show_end(self, task: Task) -> None:
        """Writes what was held back of a task that has ended."""
        self._show(task, self._tracebacks.rest(task))

    def show_unfinished_line(self, task: Task, line: str) -> None:
        """Redraws the progress bar, if it is the chief's and has changed."""
        progress = self._prefixes[task] + line if line else ""
        if is_foreign(line) or not self.shows_bar_of(task):
            return
        if progress != self._progress:
            self._progress = progress
            self._write(_CLEAR_ROW + _WITHOUT_WRAPPING.format(progress))

    def _show(self, task: Task, lines: Sequence[str]) -> None:
        if lines and task == self._chief:
            self._progress = ""  # These lines are what became of it.
        for line in lines:
            self._write_line(self._prefixes[task] + line)

    def _write_line(self, line: str) -> None:
        if not self._is_terminal:
            self._write(f"{line}\n")
            return
        progress = _WITHOUT_WRAPPING.format(self._progress) if self._progress else ""
        self._write(f"{_CLEAR_ROW}{line}\n{progress}")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        # A terminal that cannot show a character must not end the training.
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            _write_all(self._stream, text.encode(encoding, errors="replace"), encoding)
        except OSError:
            # Nobody reads this any more: a closed terminal, or `| head`. The logs have everything.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


def _write_all(stream: TextIO, content: bytes, encoding: str) -> None:
    """Writes to a stream, however long its reader takes.

    Whoever shares the pipe or terminal may have made it non-blocking. Python's own streams then
    raise an error when it is full, or leave out the rest.
    """
    try:
        # A notebook's stream has a file, too, which nobody there reads.
        descriptor = stream.fileno() if isinstance(stream, io.TextIOWrapper) else None
    except io.UnsupportedOperation:
        descriptor = None
    if descriptor is None:
        stream.write(content.decode(encoding))
        stream.flush()
        return
    _when_writable(descriptor, stream.flush)
    rest = memoryview(content)
    while rest:
        num_written = _when_writable(descriptor, lambda rest=rest: os.write(descriptor, rest))
        rest = rest[num_written:]


def _when_writable(descriptor: int, write: Callable):
    while True:
        try:
            return write()
        except BlockingIOError:
            select.select([], [descriptor], [])


def _prefixes(tasks: Sequence[Task], *, in_color: bool):
    width = max(len(str(task)) for task in tasks)
    prefixes = {}
    for position, task in enumerate(tasks):
        name = f"{task!s:<{width}} |"
        color = 31 + position % _NUM_COLORS
        prefixes[task] = f"\x1b[{color}m{name}\x1b[0m " if in_color else f"{name} "
    return prefixes
