"""What ends a command with one readable message, and no traceback."""

import difflib
import unicodedata
from collections.abc import Iterable


class UsageError(Exception):
    """A flag's value cannot be used; the message names it, shows it and says the way out.

    The exit code is 2.
    """


class RunError(Exception):
    """What was asked for cannot be done; the message says why. The exit code is 1."""


def check_name(flag: str, name: str, valid_names: Iterable[str]) -> None:
    """Raises UsageError with the valid names and the closest one, unless `name` is among them.

    Args:
        flag: The flag that holds the name, with its dashes.
        name: What the person typed.
        valid_names: What they could have typed.

    Raises:
        UsageError: `name` is not valid.
    """
    valid_names = sorted(valid_names)
    if name in valid_names:
        return
    listed = ", ".join(valid_names)
    raise UsageError(
        f"Unknown {flag} {name!r}. Valid names: {listed}{did_you_mean(name, valid_names)}"
    )


def printable(text: str) -> str:
    """Returns a text whose names of files and classes cannot steer the terminal, or fail there."""
    return "".join(
        ascii(each)[1:-1] if unicodedata.category(each) in ("Cc", "Cs") and each != "\n" else each
        for each in text
    )


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Returns the end of a sentence that lists names: the closest one, or a full stop."""
    close = difflib.get_close_matches(name, list(valid_names), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
