"""A disk that takes no more."""

import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(num_bytes: int):
    """Refuses what would make a file of this process longer, as a disk does that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
