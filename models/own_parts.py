"""Nets, preprocessings and datasets of one's own, by the names that flags give them.

    --model_name=my_package.nets:build

my_package is what Python can import where the command runs.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any

from .usage_error import UsageError


def is_own(name: str) -> bool:
    """Returns whether a name is that of a function; `mnist:3.0.1` is that of a version."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", name) is not None


def find(flag: str, name: str) -> Callable[..., Any]:
    """Returns the function that a flag names.

    Args:
        flag: With its dashes.
        name: Of the module and, after a colon, of the function.

    Raises:
        UsageError: It cannot be imported, or is no function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{flag} {name!r} cannot be imported: {error}. Write my_package.my_module:my_function, "
            "of a module that Python finds from here."
        ) from error
    if not callable(found):
        raise UsageError(f"{flag} {name!r} must be a function. It is {found!r}.")
    return found
