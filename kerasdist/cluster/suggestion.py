"""What a misspelt word of the user's was meant to be."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a question for the end of a message, or nothing where no known word is close."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
