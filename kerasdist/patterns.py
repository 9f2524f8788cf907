"""Variables by their paths: regular expressions, and help if one matches nothing."""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from kerasdist.support.unique import by_unique_name


def matches(pattern: str | keras.Variable, variable: Any) -> bool:
    """Whether `pattern` is the variable itself, or a regular expression for its whole path."""
    if isinstance(pattern, str):
        # A variable of TensorFlow's, which an optimizer may update as well, has no path.
        path = variable.path if hasattr(variable, "path") else variable.name
        return re.fullmatch(pattern, path) is not None
    return pattern is variable


def name_of(pattern: str | keras.Variable) -> str:
    """Returns how to write a regular expression or a variable."""
    return pattern if isinstance(pattern, str) else pattern.path


def check_pattern(argument: str, pattern: object) -> None:
    """Checks that `pattern` is a variable or a regular expression.

    Raises:
        TypeError: It is neither.
        ValueError: It is text that is not a regular expression.
    """
    if not isinstance(pattern, keras.Variable):
        wanted = "regular expressions over `variable.path`, or variables"
        check_expression(argument, pattern, wanted)


def check_expression(argument: str, pattern: object, wanted: str = "regular expressions") -> None:
    """Checks that `pattern` is a regular expression.

    Args:
        argument: Which holds it.
        pattern: What it is.
        wanted: What the argument may hold, in words.

    Raises:
        TypeError: It is not text.
        ValueError: It is text that is not a regular expression.
    """
    if not isinstance(pattern, str):
        raise TypeError(
            f"`{argument}` must hold {wanted}. Received: {pattern!r} of type "
            f"{type(pattern).__name__}."
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"`{argument}` holds {pattern!r}, which is not a regular expression: {error}."
        ) from error


def check_matches_something(
    argument: str, pattern: str | keras.Variable, variables: Sequence[keras.Variable]
) -> None:
    """Checks that `pattern` matches one of `variables`.

    Raises:
        ValueError: It matches none; lists the closest paths.
    """
    if any(matches(pattern, variable) for variable in variables):
        return
    paths = [variable.path for variable in variables]
    raise ValueError(
        f"{name_of(pattern)!r} in `{argument}` matches no trainable variable (the whole path must "
        f"match). Closest paths: {closest(name_of(pattern), paths)}."
    )


def check_matches_a_name(argument: str, pattern: str, names: list[str]) -> None:
    """Checks that `pattern` matches one of `names` as a whole.

    Raises:
        ValueError: It matches none; lists the closest names.
    """
    if not any(re.fullmatch(pattern, name) for name in names):
        raise ValueError(
            f"{pattern!r} in `{argument}` matches none of the names (the whole name must match). "
            f"Closest: {closest(pattern, names) or 'there are none'}."
        )


def by_unique_path(variables: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
    """Returns variables by their paths; the later ones with the same path get a number."""
    return by_unique_name(variables, lambda variable: variable.path)


def closest(text: str, names: list[str]) -> str:
    """Returns the names most like a text, for a message; "" if there are no names."""
    return ", ".join(difflib.get_close_matches(text, names, n=4, cutoff=0) or names[:4])
