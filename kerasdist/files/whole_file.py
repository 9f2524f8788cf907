"""A file that is the old one or the new one, whole, whenever its writer is killed.

with whole_file("model.keras") as unfinished:
    model.save(unfinished)
"""

import contextlib
import os
import shutil
from collections.abc import Generator

# Of a name, which can have 255 characters.
_KEPT = 200


@contextlib.contextmanager
def whole_file(path: str) -> Generator[str]:
    """Yields the path to write to, in the same folder; at the end it becomes `path`.

    After an exception what was there is still there. What a kill has left is overwritten by the
    next one.

    Args:
        path: Where the file will be; behind a link, what the link points to.
    """
    target = os.path.realpath(path)
    # The end stays, also where a link points to another one: writers choose the format by it.
    name = os.path.basename(path)[-_KEPT:]
    unfinished = os.path.join(os.path.dirname(target), f".writing-{name}")
    try:
        yield unfinished
        force_to_disk(unfinished)
        if os.path.exists(target):
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


def can_be_whole(path: str) -> bool:
    """Whether a file can be made beside `path` and take its place."""
    target = os.path.realpath(path)
    is_file = os.path.isfile(target) or not os.path.exists(target)
    folder = os.path.dirname(target)
    return "://" not in path and is_file and os.access(folder, os.W_OK | os.X_OK)


def force_to_disk(path: str) -> None:
    """Waits until the disk has what was written to a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
