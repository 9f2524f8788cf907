"""A file that is either the old one or the new one, complete, whatever happens while it is written.

with whole_file(path) as incomplete:
    model.save(incomplete)
"""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Gives a path to write to; moves it to `path` at the end, removes it after an exception.

    Behind a link it takes the place of what the link points to, and the mode of a file stays.
    """
    target = path.resolve()
    # The suffix stays, also where a link points to a name without: writers choose the format by it.
    incomplete = target.with_name(f".incomplete_{path.name}")
    try:
        yield incomplete
        with incomplete.open("rb") as file:
            os.fsync(file.fileno())  # Else a power failure may leave an empty file of this name.
        if target.exists():
            shutil.copymode(target, incomplete)
        os.replace(incomplete, target)
    finally:
        incomplete.unlink(missing_ok=True)
