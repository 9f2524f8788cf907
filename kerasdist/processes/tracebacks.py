"""Shows a traceback for one task alone, as a mistake in the program fails all of them alike."""

from kerasdist.cluster import Task

BEGIN = "Traceback (most recent call last):"

_MOST_LINES = 1000  # A program may print the first line for reasons of its own.
_MOST_KNOWN = 1000  # Each may differ by a number in its message.


def text_before(line: str) -> str | None:
    """Returns what stands before a traceback in its first line; None in any other line.

    Nothing does, but where the program has written something without an end: a progress bar, or the
    question of `input`.
    """
    before = line.removesuffix(BEGIN)
    is_indented = before != "" and before.isspace()
    return None if before == line or is_indented else before


def is_inside(line: str) -> bool:
    """Whether a line of a traceback is one before its error: code, or what marks a place in it."""
    is_mark = line != "" and not line.strip("^~")
    return is_mark or (line[:1].isspace() and text_before(line) is None)


class Tracebacks:
    """Holds the lines of a traceback back until its error is there.

    Example:
        tracebacks = Tracebacks()
        for line in tracebacks.add(task, new_line):
            print(line)
    """

    def __init__(self):
        self._held: dict[Task, list[str]] = {}
        self._first: dict[int, Task] = {}  # By the hash of a traceback, the newest last.

    def add(self, task: Task, line: str) -> list[str]:
        """Takes a line of a task, and returns what can be shown of it by now."""
        unfinished = text_before(line)
        if unfinished == "" or (unfinished and task not in self._held):
            before = self.rest(task)
            self._held[task] = [BEGIN]
            return [*before, unfinished] if unfinished else before
        if task not in self._held:
            return [line]
        self._held[task].append(line)
        if is_inside(line) and len(self._held[task]) < _MOST_LINES:
            return []
        lines = self.rest(task)
        first = self._first.setdefault(hash("\n".join(lines)), task)
        if len(self._first) > _MOST_KNOWN:
            del self._first[next(iter(self._first))]
        return lines if first == task else [f"{line} (as {first})"]

    def rest(self, task: Task) -> list[str]:
        """Returns what is held back of a task that has ended."""
        return self._held.pop(task, [])
