"""What the user meant by a misspelled word."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns a question for the end of a message, or "" if no known word is close.

    Args:
        word: What the user wrote.
        known: What it may have been.
        cutoff: How similar the two must be, from 0 to 1.
    """
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=cutoff)
    return f' Did you mean "{close[0]}"?' if close else ""
