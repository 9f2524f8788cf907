"""The error of what a person typed wrong: one readable line, no traceback, exit code 2."""

import contextlib
import re
from collections.abc import Generator, Mapping


class UsageError(ValueError):
    """A command cannot do what it was asked; the message names the argument and the way out."""


@contextlib.contextmanager
def arguments_checked(flags: Mapping[str, str] | None = None) -> Generator[None]:
    """Makes a UsageError of a ValueError or TypeError that is raised inside.

    Only for what checks or reads what the person named. Elsewhere such an error is a bug of ours,
    whose traceback must not be lost, and which a launcher must not take for a wrong argument.

    Args:
        flags: What the person knows of the arguments, by the names that messages have for these:
            {"num_workers": "--workers"}.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(_with_flags(str(error), flags or {})) from error


@contextlib.contextmanager
def flags_named(flags: Mapping[str, str]) -> Generator[None]:
    """Lets a UsageError that is raised inside name flags, as `arguments_checked` does."""
    try:
        yield
    except UsageError as error:
        raise UsageError(_with_flags(str(error), flags)) from error


def _with_flags(message: str, flags: Mapping[str, str]) -> str:
    for name, flag in flags.items():
        # A name without an underscore may be a word of the sentence.
        end = r"\b" if "_" in name else "(?=[=`])"
        message = re.sub(rf"(?<![\w.-]){name}(=True\b|{end})", flag, message)
    # A range is a pair in Python.
    return re.sub(r"(--[\w-]+=)\((-?\d+), (-?\d+)\)", r"\1\2:\3", message)
