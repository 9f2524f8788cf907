"""What a person typed wrong: one readable line, no traceback, exit code 2."""

import contextlib
from collections.abc import Generator


class UsageError(ValueError):
    """A command cannot do what it was asked; the message names the argument and the way out."""


@contextlib.contextmanager
def arguments_checked() -> Generator[None]:
    """Makes a UsageError of a ValueError or TypeError that is raised inside.

    Only for what checks or reads what the person named. Elsewhere such an error is a bug of ours,
    whose traceback must not be lost, and which a launcher must not take for a wrong argument.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
