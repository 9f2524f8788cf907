"""A file that is either the old one or the new one, complete, whatever happens while it is written.

with whole_file(path) as incomplete:
    model.save(incomplete)
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Give a path to write to; move it to `path` at the end, remove it after an exception."""
    # The suffix stays: writers choose the format by it.
    incomplete = path.with_name(f".incomplete_{path.name}")
    try:
        yield incomplete
        os.replace(incomplete, path)
    finally:
        incomplete.unlink(missing_ok=True)
