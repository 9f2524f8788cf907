"""Compares what a program gave with what plain Keras gave."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def differences(ours: Any, truth: Any, *, tolerance: float) -> list[str]:
    """Returns a line for each thing that differs: a type, a key, a length or a number.

    Args:
        ours: Numbers and arrays in dicts, lists and tuples.
        truth: The same from plain Keras.
        tolerance: Largest difference of a number; relative for numbers larger than 1. 0 asks for
            the same bits.
    """
    return list(_differences("", ours, truth, tolerance))


def _differences(path: str, ours, truth, tolerance: float) -> Iterator[str]:
    if type(ours) is not type(truth):
        yield f"{path}: {type(ours).__name__} instead of {type(truth).__name__}: {ours!r:.200}"
    elif isinstance(truth, dict):
        if list(ours) != list(truth):
            yield f"{path}: keys {list(ours)} instead of {list(truth)}"
        for key in truth.keys() & ours.keys():
            yield from _differences(f"{path}/{key}", ours[key], truth[key], tolerance)
    elif isinstance(truth, (list, tuple)):
        if len(ours) != len(truth):
            yield f"{path}: length {len(ours)} instead of {len(truth)}: {ours!r:.200}"
            yield f"{path}: plain Keras: {truth!r:.200}"
        for index, pair in enumerate(zip(ours, truth, strict=False)):
            yield from _differences(f"{path}/{index}", *pair, tolerance)
    elif isinstance(truth, (str, bool)) or truth is None:
        if ours != truth:
            yield f"{path}: {ours!r} instead of {truth!r}"
    else:
        yield from _number_differences(path, np.asarray(ours), np.asarray(truth), tolerance)


def _number_differences(path: str, ours, truth, tolerance: float) -> Iterator[str]:
    if (ours.dtype, ours.shape) != (truth.dtype, truth.shape):
        yield f"{path}: {ours.dtype}{ours.shape} instead of {truth.dtype}{truth.shape}"
    elif not np.allclose(ours, truth, rtol=tolerance, atol=tolerance, equal_nan=True):
        difference = np.abs(ours.astype("float64") - truth.astype("float64"))
        # A NaN on one side is as wrong as can be.
        worst = np.max(np.where(np.isnan(difference), np.inf, difference))
        yield f"{path}: off by {worst:.3g}" + (
            f", {ours} instead of {truth}" if not ours.shape else ""
        )
