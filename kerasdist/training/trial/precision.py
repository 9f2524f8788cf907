"""Rehearsals of nets that compute in 16 bits, made in 32.

What 16 bits make of a sum over the pixels of a batch is another number for half of it, by more than
most programs that mean something else differ by. With float32 a difference is one of the program.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import TypeVar

from kerasdist.private import keras_layers

_T = TypeVar("_T")


def rehearsed(model, rehearse: Callable[[], _T]) -> _T:
    """Returns what a rehearsal in float32 gives; as the model computes where that fails.

    Args:
        model: A model of any dtype policy.
        rehearse: Called once, or once more where a program asks for the 16 bits itself.
    """
    if not _mixed_layers(model):
        return rehearse()
    try:
        with _in_float32(model):
            return rehearse()
    except Exception:  # Of the program.
        return rehearse()


def _mixed_layers(model) -> list:
    """Returns the layers that keep float32 variables, and compute in 16 bits."""
    return [
        layer
        for layer in keras_layers.layers_of(model)
        if layer.dtype_policy.name in ("mixed_float16", "mixed_bfloat16")
    ]


@contextlib.contextmanager
def _in_float32(model) -> Generator[None]:
    layers = _mixed_layers(model)
    policies = [layer.dtype_policy for layer in layers]
    for layer in layers:
        layer.dtype_policy = "float32"
    try:
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy
