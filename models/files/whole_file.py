"""A file that is either the old one or the new one, complete, whatever happens during writing.

with whole_file(path) as incomplete:
    model.save(incomplete)
"""

import contextlib
import os
import shutil
import zlib
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yields a path to write to; moves it to `path` at the end, or removes it after an exception.

    If `path` is a link, the file that it points to is replaced. The mode of an old file is kept.
    """
    target = path.resolve()
    # The suffix is that of `path`, even if a link points to a name without one: writers choose the
    # format by it. The rest is short: a name that fits on the disk must not become one too long.
    name = f".incomplete_{zlib.crc32(os.fsencode(path.name)):08x}{path.suffix}"
    incomplete = target.with_name(name)
    try:
        yield incomplete
        with incomplete.open("rb") as file:
            os.fsync(file.fileno())  # Otherwise a power failure may leave an empty file.
        if target.exists():
            shutil.copymode(target, incomplete)
        os.replace(incomplete, target)
    finally:
        incomplete.unlink(missing_ok=True)
