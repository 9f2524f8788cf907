"""A mistake in the program fails all tasks alike: its traceback is shown for one of them."""

from kerasdist.cluster import Task

BEGIN = "Traceback (most recent call last):"

_MOST_LINES = 1000  # A program may print the first line for reasons of its own.


def is_inside(line: str) -> bool:
    """Whether a line of a traceback is one before its error: code, or what marks a place in it."""
    return line[:1].isspace() or (line != "" and not line.strip("^~"))


class Tracebacks:
    """Holds the lines of a traceback back until its error is there.

    Example:
        tracebacks = Tracebacks()
        for line in tracebacks.add(task, new_line):
            print(line)
    """

    def __init__(self):
        self._held: dict[Task, list[str]] = {}
        self._first: dict[str, Task] = {}

    def add(self, task: Task, line: str) -> list[str]:
        """Takes a line of a task, and returns what can be shown of it by now."""
        if line == BEGIN:
            before = self.rest(task)
            self._held[task] = [line]
            return before
        if task not in self._held:
            return [line]
        self._held[task].append(line)
        if is_inside(line) and len(self._held[task]) < _MOST_LINES:
            return []
        lines = self.rest(task)
        first = self._first.setdefault("\n".join(lines), task)
        return lines if first == task else [f"{line} (as {first})"]

    def rest(self, task: Task) -> list[str]:
        """Returns what is held back of a task that has ended."""
        return self._held.pop(task, [])
