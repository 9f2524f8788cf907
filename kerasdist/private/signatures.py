"""What the functions of Keras take that are routed, checked before any of them is.

A function that takes something else than it did would be called in the wrong way, or would train
wrong weights in silence. What is new and has a default is left alone: Keras' own callers, which
know it, give it by name, and a function of ours that does not know it raises a TypeError.
"""

import inspect
from collections.abc import Callable, Mapping

from kerasdist.private import names

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def check(parameters: str, place: str, function: Callable) -> None:
    """Checks that a function takes what kerasdist gives it.

    Args:
        parameters: The names of those that are known, in their order: "self inputs".
        place: Where it is found, for the message.
        function: Keras' own, or one that somebody else has put in its place.

    Raises:
        RuntimeError: It takes something else.
    """
    known = parameters.split()
    taken = inspect.signature(function).parameters
    if _takes(taken, known) or ("args" not in known and _hands_on(taken)):
        return
    library = "TensorFlow" if place.startswith("tensorflow.") else "Keras"
    raise RuntimeError(
        f"`{place}({', '.join(taken)})` of {library} {names.version_of(library)} is not the "
        f"function that kerasdist knows, which is ({', '.join(known)}). Nothing was changed. "
        f"{names.remedy_for(library)}"
    )


def _takes(taken: Mapping[str, inspect.Parameter], known: list[str]) -> bool:
    """Whether the known parameters come first, in their order, and what is new has a default."""
    named = [name for name, each in taken.items() if each.kind not in _VARIADIC]
    known_named = [name for name in known if name not in ("args", "kwargs", "kwds")]
    new = named[len(known_named) :]
    return (
        named[: len(known_named)] == known_named
        and set(known) <= set(taken)
        and all(taken[name].default is not inspect.Parameter.empty for name in new)
    )


def _hands_on(taken: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a function takes whatever there is, as those do that others put before Keras'."""
    return {each.kind for each in taken.values()} >= _VARIADIC
