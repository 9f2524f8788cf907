"""The cluster that this process is in, which it can join only once.

TensorFlow starts its servers when it starts, at ports that are then taken. A second call of
`make_strategy`, as in a loop over learning rates, gets the strategy of the first.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from kerasdist.support import memory


def note(strategy: Any, arguments: Mapping[str, Any]):
    """Notes the strategy with which this process has joined; returns it.

    Args:
        strategy: What every further call with these arguments gets.
        arguments: By their names in messages.
    """
    memory.PROCESS.joined = strategy, dict(arguments)
    return strategy


def find(arguments: Mapping[str, Any]):
    """Returns the strategy with which this process has joined; None if it has not.

    Raises:
        RuntimeError: It has joined with other arguments; names them.
    """
    if memory.PROCESS.joined is None:
        return None
    strategy, before = memory.PROCESS.joined
    others = [name for name in arguments if not _is_same(before[name], arguments[name])]
    if others:
        told = ", ".join(f"{name}={before[name]!r}, now {arguments[name]!r}" for name in others)
        raise RuntimeError(
            "`make_strategy` has joined the cluster before, with other arguments. Received before: "
            f"{told}. A process joins only once: repeat the call with the same arguments, which "
            "returns the same strategy, or restart the program."
        )
    return strategy


def _is_same(value: Any, other: Any) -> bool:
    """Whether two arguments mean the same, even if each call has made its own object."""
    if value == other:
        return True
    is_plain_object = hasattr(value, "__dict__") and not inspect.isroutine(value)
    return is_plain_object and type(value) is type(other) and vars(value) == vars(other)
