"""Traces a `tf.function` that a step calls as a part of the step, as its Python would be.

Replicas cannot meet inside of one, and a gradient that is taken there would be that of one replica.
So is what runs in a condition or a loop: a trial, which runs all of them operation by
operation, notes where it is.
"""

from collections.abc import Callable
from typing import Any

from kerasdist.training.replica import replicas
from kerasdist.training.replica.replicas import Part, Peer
from kerasdist.training.step import replica_run

_LIBRARIES = ("keras", "tensorflow", "kerasdist")


def call(replica: Peer, original: Callable, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands before the call of a `tf.function`."""
    if replica.weighs_loss and isinstance(replica, Part):
        return original(function, *args, **kwargs)
    if replica.is_in_step_graph() and (inlined := _inlined(function)):
        return inlined(*args, **kwargs)
    with replicas.apart():
        return original(function, *args, **kwargs)


def _inlined(function: Any) -> Callable | None:
    """Returns the Python of a function of the user's own; None where there is none to be had."""
    module = getattr(function.python_function, "__module__", None) or ""
    if module.partition(".")[0] in _LIBRARIES or function.input_signature:
        return None
    try:
        return replica_run.as_python(function)
    except Exception:  # AutoGraph may end with anything where it has no source.  # noqa: BLE001
        return None
