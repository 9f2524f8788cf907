"""Compares what a model is beyond its weights with what the checkpoint was written of.

A program may have another activation, loss or rate of dropout when it is started again, on purpose
or not. The weights fit all the same, and so the differences are named.
"""

import contextlib
import difflib
import json
import re
import warnings
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from kerasdist.checkpoints.saved import Saved, packed
from kerasdist.private import keras_layers

# Names are numbered in each process, callbacks freeze layers, and what is drawn to begin with no
# longer matters. A learning rate that is a number comes from the checkpoint.
_LEFT_OUT = re.compile(
    "name|trainable|seed|batch_shape|build_config|module|registered_name|.*_initializer"
)
_NAME = "configuration"  # The packed array in a checkpoint has this name.
_MOST_VALUES = 20
_COMPILED = ("loss", "loss_weights", "optimizer")


def of(model: keras.Model) -> dict[str, Any]:
    """Returns what JSON can hold of the configuration of a model's layers, loss and optimizer.

    What has no `get_config`, or one that fails, as a class of the user's may, is there by its class
    alone.
    """
    layers = [[type(each).__name__, each.name, _plain(_config_of(each))] for each in _leaves(model)]
    compiled = _compile_config_of(model)
    return {"layers": layers, **{name: _plain(compiled.get(name)) for name in _COMPILED}}


def packed_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns the configuration of a model as an array to save, by its name."""
    return {_NAME: packed(json.dumps(of(model)).encode())}


def differences_from(saved: Saved, model: keras.Model) -> list[str]:
    """Returns in words how a model is another one than that of a checkpoint, with such weights."""
    then = saved.unpacked(_NAME)
    return [] if then is None else differences(json.loads(then), json.loads(json.dumps(of(model))))


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns in words how two configurations differ, as far as both say something."""
    found = list(_of_layers(then["layers"], now["layers"]))
    for name in _COMPILED:
        found += _of_values(name, then[name], now[name])
    return found


def _leaves(model: keras.Model) -> list:
    return [each for each in keras_layers.layers_of(model) if not hasattr(each, "layers")]


def _config_of(layer: keras.layers.Layer) -> Mapping[str, Any]:
    with _tried():
        return layer.get_config()
    return {}


def _compile_config_of(model: keras.Model) -> Mapping[str, Any]:
    with _tried():
        return model.get_compile_config() or {}
    return {}


@contextlib.contextmanager
def _tried() -> Generator[None]:
    # The code of the user's classes may raise anything, which is no reason to end a training.
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        yield


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "class_name" in value and isinstance(value.get("config"), Mapping):
            return _of_object(value["class_name"], value["config"])
        return {str(key): _plain(value[key]) for key in value if not _is_left_out(key, value[key])}
    if isinstance(value, list | tuple):
        plain = [_plain(each) for each in value]
        if len(plain) > _MOST_VALUES:  # Such as the words of a vocabulary.
            return f"{len(plain)} values with sum {zlib.crc32(repr(plain).encode())}"
        return plain
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def _of_object(name: str, config: Mapping) -> Any:
    if name.endswith("Policy"):  # A policy of dtypes is what its name says.
        return config.get("name")
    return {"class": name, **_plain(config)}


def _is_left_out(key: str, value: Any) -> bool:
    is_rate = key == "learning_rate" and isinstance(value, int | float)
    return is_rate or _LEFT_OUT.fullmatch(str(key)) is not None


def _of_layers(then: list, now: list) -> Iterator[str]:
    classes = [[kind for kind, _, _ in layers] for layers in (then, now)]
    matcher = difflib.SequenceMatcher(None, *classes, autojunk=False)
    for what, begin, end, begin_now, end_now in matcher.get_opcodes():
        if what == "equal":
            pairs = zip(then[begin:end], now[begin_now:end_now], strict=True)
            for (_, _, was), (_, name, are) in pairs:
                yield from _of_values(f"layer {name!r}", was, are)
            continue
        for where, layers in (
            ("in the checkpoint", then[begin:end]),
            ("now", now[begin_now:end_now]),
        ):
            yield from (f"layer {name!r} ({kind}) only {where}" for kind, name, _ in layers)


def _of_values(what: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        if then.get("class") != now.get("class"):
            then, now = then.get("class"), now.get("class")
        else:
            for key in sorted(then.keys() & now.keys()):  # Another version of Keras may have more.
                yield from _of_values(f"{what} {key}", then[key], now[key])
            return
    if then != now:
        yield f"{what}: {_shown(then)} in the checkpoint, {_shown(now)} now"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and "class" in value:
        return str(value["class"])
    return repr(value) if len(repr(value)) < 50 else f"{repr(value)[:50]}..."
