"""The History that `fit` returns as JSON, and back.

An epoch in which the data ran out has logged. If it goes on with more data, it logs once more, and
its first values are cut off.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kerasdist.checkpoints.extension_types import is_extension


def read(history: Any) -> dict:
    """Returns {"epoch": numbers of the epochs, "history": a list of values for each log}."""
    return {
        "epoch": [int(each) for each in getattr(history, "epoch", ())],
        "history": plain(getattr(history, "history", {})),
    }


def lengths_of(history: Any) -> dict[str, int]:
    """Returns how many values each log has so far, and under "" the number of epochs."""
    logs = getattr(history, "history", {})
    return {"": len(getattr(history, "epoch", ())), **{name: len(logs[name]) for name in logs}}


def extend(history: Any, before: Mapping, *, lengths: Mapping[str, int] | None = None) -> None:
    """Puts the epochs from before in front of those of a History.

    Args:
        history: Of the `fit` that runs.
        before: What `read` returned.
        lengths: How many values of each log to take; None takes all.
    """
    if not isinstance(history, keras.callbacks.History):
        return
    history.epoch[:0] = before["epoch"] if lengths is None else before["epoch"][: lengths[""]]
    for name, values in before["history"].items():
        kept = values if lengths is None else values[: lengths.get(name, 0)]
        if kept or name in history.history:
            history.history[name] = [*kept, *history.history.get(name, [])]


def plain(value: Any) -> Any:
    """Returns what JSON can hold: numbers and text as they are, other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    if is_extension(array.dtype):
        array = array.astype("float64")
    return array.tolist() if array.dtype.kind in "biufU" else str(value)
