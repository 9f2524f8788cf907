"""What a person typed wrong: one readable message, no traceback, exit code 2."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A flag's value cannot be used; the message names it, shows it and says the way out."""


def check_name(flag: str, name: str, valid_names: Iterable[str]) -> None:
    """Raise UsageError with the valid names and the closest one, unless `name` is among them.

    Args:
        flag: the flag that holds the name, with its dashes.
        name: what the person typed.
        valid_names: what they could have typed.

    Raises:
        UsageError: `name` is not valid.
    """
    valid_names = sorted(valid_names)
    if name in valid_names:
        return
    close = difflib.get_close_matches(name, valid_names, n=1)
    did_you_mean = f"; did you mean {close[0]!r}?" if close else "."
    raise UsageError(
        f"Unknown {flag} {name!r}. Valid names: {', '.join(valid_names)}{did_you_mean}"
    )
