"""Traces a `tf.function` that a step calls as a part of the step, as its Python would be.

Replicas cannot meet inside of one, and a gradient that is taken there would be that of one replica.
So is what runs in a condition or a loop: a trial, which runs all of them operation by
operation, notes where it is.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.training.replica import replicas
from kerasdist.training.step import replica_run

_LIBRARIES = ("keras", "tensorflow", "kerasdist")


def call(original: Callable, function: Any, *args: Any, **kwargs: Any):
    """Stands before the call of a `tf.function`."""
    step = replicas.current()
    if step is None or step.is_alone or (step.weighs_loss and not step.is_of_loop):
        return original(function, *args, **kwargs)
    if tf.compat.v1.get_default_graph() is step.graph and (inlined := _inlined(function)):
        return inlined(*args, **kwargs)
    with replicas.apart():
        return original(function, *args, **kwargs)


def _inlined(function: Any):
    """Returns the Python of a function of the user's own; None where there is none to be had."""
    module = getattr(function.python_function, "__module__", None) or ""
    if module.partition(".")[0] in _LIBRARIES or function.input_signature:
        return None
    try:
        return replica_run.as_python(function)
    except Exception:  # AutoGraph may end with anything where it has no source.  # noqa: BLE001
        return None
