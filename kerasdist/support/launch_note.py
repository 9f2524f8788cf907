"""The note of a task: a file in which it leaves words for the launcher that started it.

Beside it is one in which the launcher tells the task, in a sentence, that it has lost a peer.
"""

import contextlib
import os
from pathlib import Path

from kerasdist.support import environment

JOINED = "joined"  # It has called `make_strategy`.
WAITING = "waiting"  # It waits for the other tasks of its cluster, or has met them.
FAILED = "failed"  # It ends with an error of its own.
BEGUN, ENDED = "begun", "ended"  # A call of `fit` or `evaluate` that all tasks take part in.
_SAVED = "saved:"  # A checkpoint is complete; its step follows.
# Launchers look many times a second, and a training of weeks leaves many words. Between two
# checkpoints there are few others.
_END_BYTES = 4096


def add(word: str) -> None:
    """Adds a word to the note of this task; nothing where no launcher reads it."""
    if path := os.environ.get(environment.NOTE):
        with contextlib.suppress(OSError), Path(path).open("a") as file:  # The launch may be over.
            file.write(f"{word}\n")


def add_checkpoint(step: int) -> None:
    """Adds that the checkpoint of a step is complete."""
    add(f"{_SAVED}{step}")


def line_of(task: object, line: str) -> str:
    """Returns a line with its task in front, such as "worker 1: ..."; a launcher puts it there."""
    return line if environment.NOTE in os.environ else f"{task}: {line}"


def words_of(path: Path) -> set[str]:
    """Returns what a task has left in its note so far."""
    return set(_read(path))


def is_in_call(path: Path) -> bool:
    """Whether a call of `fit` or `evaluate` has begun in a task and not ended."""
    words = _read(path)
    return words.count(BEGUN) > words.count(ENDED)


def newest_step(path: Path) -> int | None:
    """Returns the step of the checkpoint that a task has completed last; None before the first."""
    words = _read(path, of_end=_END_BYTES)
    saved = [word.removeprefix(_SAVED) for word in words if word.startswith(_SAVED)]
    return int(saved[-1]) if saved else None


def tell_loss(path: Path, cause: str) -> None:
    """Tells the task with this note that it has lost a peer: why, in a sentence."""
    with contextlib.suppress(OSError):  # The task hears of it from TensorFlow, too, only later.
        whole = path.with_suffix(".telling")
        whole.write_text(cause)
        whole.rename(_answer_to(path))


def told_loss() -> str:
    """Returns what `tell_loss` has told this task; "" if nothing."""
    path = os.environ.get(environment.NOTE)
    with contextlib.suppress(OSError):
        return _answer_to(Path(path)).read_text() if path else ""
    return ""


def remove(path: Path) -> None:
    """Removes a note, and what was told."""
    path.unlink(missing_ok=True)
    _answer_to(path).unlink(missing_ok=True)


def _answer_to(path: Path) -> Path:
    return path.with_suffix(".loss")


def _read(path: Path, *, of_end: int | None = None) -> list[str]:
    """Returns the words, or the whole ones among so many bytes of the end."""
    try:
        with path.open("rb") as file:
            if of_end and path.stat().st_size > of_end:
                file.seek(-of_end, os.SEEK_END)
                file.readline()
            return file.read().decode().split()
    except OSError:
        return []
