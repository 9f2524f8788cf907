"""Describes losses, metrics and layers, alike in every process that made them alike.

Nothing that is of one process: addresses, paths, code (it names its file), seeds that Keras draws,
the numbers behind its names, and what a program sets from the rank of its worker. What is left out
is not compared; workers that are refused although they train the same would be worse.
"""

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_layers

# Settings of layers that are of Keras' bookkeeping, that are compared with the weights, or that
# choose how the same is computed on a device.
_NOT_COMPARED = frozenset(
    {
        *("build_config", "data_format", "dtype", "flash_attention", "implementation", "module"),
        *("registered_name", "trainable", "unroll", "use_cudnn"),
    }
)
# Words in the names of settings that may have another value in each process.
_OF_A_PROCESS = frozenset(
    {
        *("cache", "chief", "code", "date", "debug", "device", "dir", "directory", "file", "files"),
        *("filename", "filepath", "folder", "host", "hostname", "index", "job", "local", "log"),
        *("logger", "logging", "main", "master", "name", "names", "path", "paths", "pid", "port"),
        *("print", "process", "progress", "rank", "replica", "run", "seed", "shard", "summary"),
        *("task", "time", "timestamp", "uid", "uuid", "verbose", "worker"),
    }
)
# Separators of paths, addresses, and numbers that are drawn for a process.
_TEXT_OF_A_PROCESS = re.compile(r"[/\\]|0x[0-9a-f]{6}|[0-9a-f]{12}")
_LARGEST_SETTING = 2**30  # Beyond are ids, hashes and times.
_MOST_VALUES = 100_000
_LONGEST = 200


def describe(value: Any) -> str:
    """Returns what can be compared of an argument, such as a loss or a dict of metrics.

    Of a function that is its name, of an object its class and its settings.
    """
    text = _scalar(value)
    if text is not None:
        return text
    if isinstance(value, Mapping):
        # Keys may be names of layers that Keras has numbered.
        pairs = sorted(f"{describe(key)}: {describe(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(describe(each) for each in value)}]"
    if isinstance(value, functools.partial):
        given = {name: describe(each) for name, each in _compared(value.keywords)}
        return _called(describe(value.func), given, [describe(each) for each in value.args])
    name = getattr(value, "__name__", None)
    if callable(value) and isinstance(name, str):
        return _without_number(name)
    return _called(type(value).__name__, settings_of(value))


def settings_of(thing: Any) -> dict[str, str]:
    """Returns the settings of an object with a `get_config` that can be compared, by their names.

    Values are None, bools, numbers, texts, lists of these, and objects that have only such ones.
    """
    config = {}
    # What the user's own object raises here: plain `fit` does not ask for its settings.
    with contextlib.suppress(Exception):
        if not _holds_large_arrays(thing):
            config = dict(thing.get_config())
    found = ((name, _setting(value)) for name, value in _compared(config))
    return {name: text for name, text in found if text is not None}


def shortened(text: str) -> str:
    """Returns a text, or the beginning of a long one and what tells it from others."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _compared(settings: Mapping) -> list[tuple[str, Any]]:
    def is_compared(name: str) -> bool:
        return name not in _NOT_COMPARED and not _OF_A_PROCESS.intersection(name.lower().split("_"))

    return [(str(name), value) for name, value in settings.items() if is_compared(str(name))]


def _setting(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return _list(value)
    if isinstance(value, Mapping):
        return _serialized(value) if "class_name" in value else None
    return _scalar(value)


def _list(values: list | tuple) -> str | None:
    if len(values) > _MOST_VALUES:
        return f"{len(values)} values"
    texts = [_list(each) if isinstance(each, list | tuple) else _scalar(each) for each in values]
    return None if None in texts else f"[{', '.join(map(str, texts))}]"


def _serialized(value: Mapping) -> str | None:
    """Returns what Keras has serialized: a function, or an object without those inside it."""
    config = value.get("config")
    if isinstance(config, str):  # The name of a function.
        return _scalar(config)
    if not isinstance(config, Mapping) or value["class_name"] == "__lambda__":
        return _scalar(value["class_name"])
    found = ((name, _scalar(each)) for name, each in _compared(config))
    return _called(
        str(value["class_name"]), {name: text for name, text in found if text is not None}
    )


def _scalar(value: Any) -> str | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return None if _TEXT_OF_A_PROCESS.search(value) else _without_number(value)
    # These digits of a float do not depend on the processor that it was computed on.
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):  # A bool is one.
        return str(value) if abs(value) < _LARGEST_SETTING else None
    return "None" if value is None else None


def _without_number(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def _called(name: str, settings: Mapping[str, str], values: Iterable[str] = ()) -> str:
    given = [*values, *(f"{name}={text}" for name, text in sorted(settings.items()))]
    return f"{name}({', '.join(given)})"


def _holds_large_arrays(thing: Any) -> bool:
    """Whether its config would be one of very many numbers, such as an embedding's first values."""
    layers = keras_layers.layers_of(thing) if isinstance(thing, keras.Layer) else [thing]
    held = [each for layer in layers for each in vars(layer).values()]
    held += [
        inner
        for each in held
        if isinstance(each, keras.initializers.Initializer)
        for inner in vars(each).values()
    ]
    return any(
        isinstance(each, np.ndarray | tf.Tensor) and np.prod(each.shape) > _MOST_VALUES
        for each in held
    )
