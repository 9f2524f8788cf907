"""What ends a command with one readable message, and no traceback."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

# Controls, halves of pairs that are no text, ends of lines, and what turns the way of writing.
_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class UsageError(Exception):
    """A flag's value cannot be used; the message names it, shows it and says the way out.

    The exit code is 2.
    """


class RunError(Exception):
    """What was asked for cannot be done; the message says why. The exit code is 1."""


class UnreadableDataError(RunError):
    """A file or an example of the data cannot be used; the message names it."""


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


def printable(text: object) -> str:
    """Returns a text as one line that neither steers the terminal nor fails there.

    Every name of a file or a class that somebody else has chosen goes through here.
    """
    return "".join(ascii(each)[1:-1] if _steers(each) else each for each in str(text))


def in_one_line(text: object) -> str:
    """Returns a message of others, such as Keras', without its line breaks."""
    return re.sub(r"\s*\n\s*", " ", str(text)).strip()


def _steers(character: str) -> bool:
    is_of_category = unicodedata.category(character) in _CATEGORIES
    return is_of_category or unicodedata.bidirectional(character) in _DIRECTIONS


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Returns the end of a sentence that lists names: the closest one, or a full stop."""
    close = difflib.get_close_matches(name, list(valid_names), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
