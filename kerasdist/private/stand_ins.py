"""Values that stand in for what Keras' variables hold, in the graph that is traced and in no other.

A variable is one object for all threads. While a step is traced in one of them, a callback may read
the weights in another, as a plot that is drawn while training goes on does: it gets the weights.

tests/private/test_stand_ins.py fails when the private name moves.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.support import memory

# Attribute of a variable for which others stand in: what does so, by the place where it does.
_STAND_INS = "_stand_ins_by_place"


@contextlib.contextmanager
def standing_in(variables: list[keras.Variable], values: list) -> Generator[None]:
    """Lets other variables of TensorFlow's stand in for those that Keras' variables hold.

    Inside of the graph that is traced, and of those within it; for this thread where none is.
    """
    place = _place()
    pairs = list(zip(variables, values, strict=False))
    before = [_stand_ins_of(variable).get(place) for variable, _ in pairs]
    for variable, value in pairs:
        _set(variable, place, value)
    try:
        yield
    finally:
        for (variable, _), value in zip(pairs, before, strict=True):
            _set(variable, place, value)


def stand_in(variables: list[keras.Variable], values: list) -> None:
    """Replaces what stands in for variables, inside of `standing_in`."""
    for variable, value in zip(variables, values, strict=True):
        variable._value = value


def give_way(tensor: Any, variable: keras.Variable, then: Callable) -> None:
    """Lets a tensor that is to stand in for a variable give way to it where that is assigned to.

    Args:
        tensor: A symbolic one.
        variable: The one that it is to stand in for.
        then: Called before the variable is assigned to.
    """
    original = variable._value

    def giving_way(name: str):
        def assign(*args: Any, **kwargs: Any):
            variable._value = original
            then()
            return getattr(original, name)(*args, **kwargs)

        return assign

    for name in ("assign", "assign_add", "assign_sub"):
        setattr(tensor, name, giving_way(name))


def _place() -> Any:
    # Replicas are threads that trace one graph.
    return threading.get_ident() if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _stand_ins_of(variable: keras.Variable) -> dict:
    return vars(variable).get(_STAND_INS, {})


def _set(variable: Any, place: Any, value: Any) -> None:
    """Lets a value stand in for a variable at a place; None for nobody."""
    with memory.PROCESS.lock:
        stand_ins = {**_stand_ins_of(variable), place: value}
        if value is None:
            del stand_ins[place]
        # Others read it without the lock, so it is never changed.
        vars(variable)[_STAND_INS] = stand_ins
        # Reading a variable for which nothing stands in takes no longer than it did.
        is_replaceable = "_value" in vars(type(variable))
        if not stand_ins:
            del vars(variable)[_STAND_INS]
        if bool(stand_ins) != is_replaceable:
            kind = type(variable)
            variable.__class__ = kind.__base__ if is_replaceable else _replaceable(kind)


@functools.cache
def _replaceable(kind: type) -> type:
    """Returns a subclass whose variables find out where they are asked for what they hold."""
    names = {"_value": property(_get_value, _set_value), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), names)


def _get_value(variable: Any):
    stand_ins = _stand_ins_of(variable)
    place = _place_among(stand_ins)
    return vars(variable)["_value"] if place is None else stand_ins[place]


def _set_value(variable: Any, value: Any):
    place = _place_among(_stand_ins_of(variable))
    if place is None:
        vars(variable)["_value"] = value
    else:
        _set(variable, place, value)


def _place_among(stand_ins: dict) -> Any:
    """Returns the innermost place that has a stand-in and that this code is in, or None."""
    place = _place()
    while place is not None and place not in stand_ins:
        outer = getattr(place, "outer_graph", None)
        place = None if outer is place else outer
    return place
