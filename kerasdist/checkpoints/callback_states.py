"""What callbacks have counted and seen, as JSON and arrays, and back.

Callbacks with `get_state()` and `set_state(state)`, which exchange a dict of arrays, keep what they
like. Of Keras' own it is what they compare with and count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

# The attributes that Keras sets when `fit` begins, and changes in it.
_OF_KERAS = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "epochs_since_last_save"),
}


def read(callbacks: Sequence) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Returns what callbacks know: for each in order what JSON can hold, and all arrays by name."""
    states, arrays = [], {}
    for index, callback in enumerate(callbacks):
        state: dict[str, Any] = {"class": type(callback).__name__}
        for name, value in _attributes(callback).items():
            if isinstance(value, np.ndarray):
                arrays[_name(index, name)] = value
            else:
                state[name] = value
        states.append(state)
    return states, arrays


def write(callbacks: Sequence, states: list[dict], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives callbacks what `read` has returned; others at a place keep what they have."""
    for index, (callback, state) in enumerate(zip(callbacks, states, strict=False)):
        if state["class"] != type(callback).__name__:
            continue
        prefix = _name(index, "")
        own = {
            name.removeprefix(prefix): value
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
        if hasattr(callback, "set_state"):
            if own:
                callback.set_state(_under_the_names_of(callback.get_state(), own))
            continue
        lists = {name.split("[")[0] for name in own if "[" in name}
        for name in lists:
            state[name] = [own.pop(f"{name}[{number}]") for number in range(_length(own, name))]
        for name in _names(callback):
            if name in state or name in own:
                setattr(callback, name, own.get(name, state.get(name)))


def _under_the_names_of(current: Mapping, own: dict) -> dict:
    # Keras numbers the names of layers in each process.
    if len(current) == len(own):
        return dict(zip(current, own.values(), strict=True))
    return own


def _attributes(callback) -> dict[str, Any]:
    if hasattr(callback, "get_state"):
        return {name: np.asarray(value) for name, value in callback.get_state().items()}
    found: dict[str, Any] = {}
    for name in _names(callback):
        value = getattr(callback, name, None)
        if isinstance(value, (list, tuple)):  # Weights.
            found |= {f"{name}[{number}]": np.asarray(each) for number, each in enumerate(value)}
        elif value is None or isinstance(value, (bool, int, float, str)):
            found[name] = value
        else:
            found[name] = np.asarray(value).item()
    return found


def _names(callback) -> tuple[str, ...]:
    return next((names for kind, names in _OF_KERAS.items() if isinstance(callback, kind)), ())


def _name(index: int, name: str) -> str:
    return f"callback/{index}/{name}"


def _length(arrays, name) -> int:
    return sum(each.startswith(f"{name}[") for each in arrays)
