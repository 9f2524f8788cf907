"""A file that is either the old one or the new one, whole, whenever its writer is killed.

with whole_file("model.keras") as unfinished:
    model.save(unfinished)
"""

import contextlib
import os
import shutil
from collections.abc import Generator

from kerasdist.support.remote_path import is_remote

# Bytes of a name, which can have 255: not characters, of which some take four.
_KEPT = 200


@contextlib.contextmanager
def whole_file(path: str) -> Generator[str]:
    """Yields a path in the same folder to write to; at the end that file becomes `path`.

    After an exception the old file is still there. What a kill leaves is overwritten the next time.

    Args:
        path: Where the file will be; if it is a link, the file that it points to is replaced.
    """
    target = os.path.realpath(path)
    # The end of the name stays, not that of a link's target: writers choose the format by it.
    name = os.path.basename(path).encode(errors="ignore")[-_KEPT:].decode(errors="ignore")
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
    """Whether a file can be made next to `path` and then replace it."""
    target = os.path.realpath(path)
    is_file = os.path.isfile(target) or not os.path.exists(target)
    folder = os.path.dirname(target)
    return not is_remote(path) and is_file and os.access(folder, os.W_OK | os.X_OK)


def force_to_disk(path: str) -> None:
    """Waits until the disk has what was written to a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
