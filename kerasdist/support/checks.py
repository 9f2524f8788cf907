"""Checks of what the caller gave, each with the same message everywhere.

    check_int("num_workers", num_workers, at_least=1)

To Python, True and False are ints; here they are not numbers: `num_workers=True` is a slip, not one
worker.
"""

import math
import numbers
import os
from collections.abc import Sequence
from typing import Any, TypeGuard


def check_int(name: str, value: object, *, at_least: int | None = None) -> None:
    """Raises a TypeError unless `value` is an int, and a ValueError if it is too small."""
    if not is_int(value):
        raise TypeError(f"`{name}` must be an int. Received: {name}={value!r}.")
    if at_least is not None and value < at_least:
        raise ValueError(f"`{name}` must be at least {at_least}. Received: {name}={value}.")


def check_number(name: str, value: object) -> None:
    """Raises a TypeError unless `value` is a number."""
    if not is_number(value):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r}.")


def check_positive(name: str, value: Any, *, finite: bool = False) -> None:
    """Raises a TypeError unless `value` is a number, and a ValueError unless it is positive."""
    check_number(name, value)
    if not value > 0:  # Also refuses nan.
        raise ValueError(f"`{name}` must be positive. Received: {name}={value}.")
    if finite and math.isinf(value):
        raise ValueError(f"`{name}` must be finite. Received: {name}={value}.")


def check_secs(name: str, value: object) -> None:
    """Raises a TypeError unless `value` is a number, and a ValueError if it is negative."""
    if not is_number(value):
        raise TypeError(f"`{name}` must be a number of seconds. Received: {name}={value!r}.")
    if not value >= 0:  # Also refuses nan.
        raise ValueError(f"`{name}` must be at least 0. Received: {name}={value}.")


def check_decay(name: str, value: Any) -> None:
    """Raises a TypeError unless `value` is a number, and a ValueError unless it is in [0, 1)."""
    check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must be at least 0 and less than 1. Received: {name}={value}.")


def check_bool(name: str, value: object) -> None:
    """Raises a TypeError unless `value` is True or False; the text "False" is true to Python."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}.")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raises a TypeError unless `value` is an instance of `kind`, or None."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}. Received: {name}={value!r}.")


def check_text(name: str, value: object) -> None:
    """Raises a TypeError unless `value` is a str."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a str. Received: {name}={value!r}.")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises a ValueError unless `value` is one of `choices`."""
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise ValueError(
            f"`{name}` must be {', '.join(others)} or {last}. Received: {name}={value!r}."
        )


def check_one_of(*, may_be_none: bool = False, **values: object) -> None:
    """Raises a ValueError unless exactly one of some arguments is given, that is, is not None.

    Args:
        may_be_none: Whether none of them may be given.
        values: The arguments by their names.
    """
    num_given = sum(value is not None for value in values.values())
    if num_given > 1 or not (num_given or may_be_none):
        *others, last = (f"`{name}`" for name in values)
        names = f"{', '.join(others)} and {last}"
        received = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ValueError(f"Give one of {names}. Received: {received}.")


def check_steps_or_secs(*, may_be_none: bool = False, **values: object) -> None:
    """Raises unless one of two arguments says how often: in steps, or in seconds.

    Args:
        may_be_none: Whether none of them may be given.
        values: The arguments by their names, the steps first.
    """
    check_one_of(may_be_none=may_be_none, **values)
    (of_steps, steps), (of_secs, secs) = values.items()
    if steps is not None:
        check_int(of_steps, steps, at_least=1)
    if secs is not None:
        check_secs(of_secs, secs)


def checked_folder(name: str, value: Any) -> str:
    """Returns the path of a folder; raises a TypeError or ValueError if it is not one."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"`{name}` must be the path of a folder. Received: {name}={value!r}.")
    if not path:
        raise ValueError(
            f"`{name}` must not be empty. Received: {name}={value!r}. '.' is the current folder."
        )
    return path


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is an int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is an int or a float, and not a bool.

    Numpy's numbers count, too: one may come from a count of examples.
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
