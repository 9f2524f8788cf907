"""The History that `fit` returns as JSON, and back.

An epoch in which the data ran out has logged. If it goes on with more data, it logs once more, and
its first values are cut off.
"""

import json
from collections.abc import Mapping

import keras
import numpy as np


def read(history) -> dict:
    """Returns {"epoch": numbers of the epochs, "history": a list of values for each log}."""
    return {
        "epoch": [int(each) for each in getattr(history, "epoch", ())],
        "history": _plain(getattr(history, "history", {})),
    }


def lengths_of(history) -> dict[str, int]:
    """Returns how many values each log has so far, and under "" the number of epochs."""
    logs = getattr(history, "history", {})
    return {"": len(getattr(history, "epoch", ())), **{name: len(logs[name]) for name in logs}}


def extend(history, before: Mapping, *, lengths: Mapping[str, int] | None = None) -> None:
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


def _plain(logs) -> dict[str, list]:
    return json.loads(json.dumps(logs, default=lambda value: np.asarray(value).tolist()))
