"""The state of callbacks as JSON and arrays, and back.

Callbacks with `get_state()` and `set_state(state)`, which exchange a dict of arrays, choose what to
keep. For those of Keras it is the attributes that they count and compare with. The state of a
wrapper is that of the callback in it.
"""

import collections
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from kerasdist.checkpoints.extension_types import is_extension
from kerasdist.checkpoints.saved import Saved
from kerasdist.private import keras_fit
from kerasdist.support import memory
from kerasdist.support.users_line import warn
from kerasdist.training.report.wrapper import Wrapper

# The attributes that Keras sets when `fit` begins and then changes.
_OF_KERAS = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", *keras_fit.STEPS_OF_MODEL_CHECKPOINT),
    keras.callbacks.SwapEMAWeights: (keras_fit.ARE_AVERAGES_SWAPPED_IN,),
}
# Numbers and text: what NumPy writes without pickle.
_PLAIN_KINDS = "biufcSU"
# The entries that say which callback a state is of.
_KIND = ("class", "bases")


class _NotKept(TypeError):
    """A state is none that a checkpoint can hold; the message says why."""


def read(callbacks: Sequence) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Returns for each callback in order what JSON can hold, and the arrays of all by name.

    The state of a callback whose `get_state` returns anything else is left out, with one warning.
    """
    states, arrays = [], {}
    for index, callback in enumerate(map(_innermost, callbacks)):
        state: dict[str, Any] = _kind_of(callback)
        for name, value in _kept_attributes(callback).items():
            if isinstance(value, np.ndarray):
                arrays[_name(index, name)] = value
            else:
                state[name] = value
        states.append(state)
    return states, arrays


def write(callbacks: Sequence, states: list[dict], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives callbacks what `read` has returned; those without a state there keep theirs.

    The second callback of a class gets the state of the second one, wherever it is in the list.
    """
    indices = _indices_of(states)
    for key, callback in zip(_keys(map(_class_of, callbacks)), callbacks, strict=True):
        if key in indices and not _runs_elsewhere(callback):
            index = indices[key]
            _write(_innermost(callback), states[index], _arrays_of(index, arrays))


def without_callback(
    callbacks: Sequence, states: list[dict], arrays: Mapping[str, np.ndarray]
) -> list[str]:
    """Returns the classes of the states that no callback would get from `write`."""
    keys = set(_keys(map(_class_of, callbacks)))
    return [
        states[index]["class"]
        for key, index in _indices_of(states).items()
        if key not in keys and (states[index].keys() - set(_KIND) or _arrays_of(index, arrays))
    ]


def arrays_of_class(name: str, saved: Saved) -> Iterator[tuple[str, np.ndarray]]:
    """Yields names and arrays in the states of callbacks of a class, or of a subclass."""
    for index, state in enumerate(saved.record["callbacks"]):
        if name in (state["class"], *state.get("bases", ())):
            yield from _arrays_of(index, saved.arrays).items()


def _write(callback: Any, state: dict, own: dict[str, np.ndarray]):
    if hasattr(callback, "set_state"):
        if own:
            callback.set_state(_under_the_names_of(callback.get_state(), own))
        return
    state, lists = dict(state), {name.split("[")[0] for name in own if "[" in name}
    for name in lists:
        state[name] = [own.pop(f"{name}[{number}]") for number in range(_length(own, name))]
    for name in _names(callback):
        if name in state or name in own:
            setattr(callback, name, own.get(name, state.get(name)))


def _under_the_names_of(current: Mapping, own: dict) -> dict:
    # Keras numbers the names of layers anew in each process.
    if current.keys() != own.keys() and len(current) == len(own):
        return dict(zip(current, own.values(), strict=True))
    return own


def _kept_attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    try:
        return _own_state(callback) if hasattr(callback, "get_state") else _attributes(callback)
    except _NotKept as error:
        notes = memory.of_part(callback)
        if not notes.is_state_told:
            notes.is_state_told = True
            warn(
                f"Checkpoints do not hold the state of {type(callback).__name__}: {error}. Let "
                "get_state() return a dict of arrays, and set_state(state) take it."
            )
        return {}


def _own_state(callback: Any) -> dict[str, np.ndarray]:
    if not hasattr(callback, "set_state"):
        raise _NotKept("it has no set_state")
    if not _takes_nothing(callback.get_state):
        raise _NotKept("its get_state needs arguments")
    state = callback.get_state()
    if not isinstance(state, Mapping):
        raise _NotKept(f"its get_state returns a {type(state).__name__}")
    return {name: _plain(name, value) for name, value in state.items()}


def _takes_nothing(function: Callable) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _plain(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # Lists of different lengths.
        array = np.asarray(None)
    if array.dtype.kind not in _PLAIN_KINDS and not is_extension(array.dtype):
        raise _NotKept(f"{name!r} in it is not an array of numbers or text")
    return array


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
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


def _kind_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    name, *bases = (each.__name__ for each in type(callback).__mro__ if each is not object)
    return dict(zip(_KIND, (name, bases), strict=True))


def _innermost(callback: keras.callbacks.Callback):
    return callback.innermost if isinstance(callback, Wrapper) else callback


def _runs_elsewhere(callback: keras.callbacks.Callback) -> bool:
    """Whether a wrapper runs its callback on another worker."""
    return isinstance(callback, Wrapper) and callback.innermost.model is None


def _class_of(callback: keras.callbacks.Callback) -> str:
    return type(_innermost(callback)).__name__


def _keys(classes: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yields each class with how many of it there were before."""
    counts = collections.Counter()
    for name in classes:
        yield name, counts[name]
        counts[name] += 1


def _indices_of(states: list[dict]) -> dict[tuple[str, int], int]:
    return {key: index for index, key in enumerate(_keys(each["class"] for each in states))}


def _arrays_of(index: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    prefix = _name(index, "")
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}


def _names(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    return next((names for kind, names in _OF_KERAS.items() if isinstance(callback, kind)), ())


def _name(index: int, name: str) -> str:
    return f"callback/{index}/{name}"


def _length(arrays: Iterable[str], name: str) -> int:
    return sum(each.startswith(f"{name}[") for each in arrays)
