"""What a task tells the launcher that started it, in a file of its own: the words it has left."""

import contextlib
import os
from pathlib import Path

VARIABLE = "KERASDIST_NOTE"  # Holds the path of the file; without a launcher there is none.
JOINED = "joined"  # It has called `make_strategy`.
WAITING = "waiting"  # It waits for the other tasks of its cluster, or has met them.
FAILED = "failed"  # It ends with an error of its own.


def leave(word: str) -> None:
    """Adds a word to the note of this task; nothing where no launcher reads it."""
    if path := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError), Path(path).open("a") as file:  # The launch may be over.
            file.write(f"{word}\n")


def words_of(path: Path) -> set[str]:
    """Returns what a task has left in its note so far."""
    try:
        return set(path.read_text().split())
    except OSError:
        return set()
