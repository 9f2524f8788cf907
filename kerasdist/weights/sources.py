"""Reads values to start with from files of many kinds. No code in a file is run."""

import contextlib
import dataclasses
import functools
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import (
    CorruptCheckpointError,
    Folder,
    Saved,
    callback_states,
)
from kerasdist.checkpoints.saved import RECORD, WEIGHTS
from kerasdist.checkpoints.saved import read as read_checkpoint
from kerasdist.files import h5_file
from kerasdist.private import variable_adapter
from kerasdist.training.report import model_file
from kerasdist.weights import place

_AVERAGE = "/ExponentialMovingAverage"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Reading raises these if a file is damaged, of another kind, or not permitted.
_UNREADABLE = (
    *(OSError, LookupError, AttributeError, TypeError, RuntimeError, EOFError, UnicodeDecodeError),
    *(zipfile.BadZipFile, zlib.error, tf.errors.OpError, CorruptCheckpointError),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One value of a source.

    Attributes:
        name: As a person sees it.
        place: Where it is in a file of Keras, such as "layers/dense/vars/0"; "" elsewhere.
        shape: Of the array.
        dtype: Of the array, as text.
        load: Returns the array.
    """

    name: str
    place: str = ""
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What was read.

    Attributes:
        values: The weights.
        checkpoint: That of `callbacks.Checkpoint` which holds them, if it is one.
    """

    values: list[Value]
    checkpoint: Saved | None = None


def read(source: Any, *, averages: bool = False) -> Source:
    """Returns what is in a source; see `warm_start`.

    Args:
        source: A path, or a dict of arrays.
        averages: Whether moving averages take the places of the weights that they belong to.

    Raises:
        TypeError: It is neither.
        ValueError: It cannot be read, or has no averages.
    """
    if isinstance(source, Mapping):
        values = [_of_array(str(name), array) for name, array in source.items()]
        return Source(values=_chosen(values, "the dict", averages))
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"`source` must be a path or a dict of arrays. Received: {source!r} of type "
            f"{type(source).__name__}."
        )
    path = os.fspath(source).rstrip("/")
    with _path_named(path):
        place.check(path)
        checkpoint = _checkpoint_at(path)
        values = _of_checkpoint(checkpoint, averages) if checkpoint else _of_path(path, averages)
    values = [
        dataclasses.replace(each, load=functools.partial(_loaded, path, each.load))
        for each in values
    ]
    return Source(values=values, checkpoint=checkpoint)


@contextlib.contextmanager
def _path_named(path: str) -> Generator[None]:
    try:
        yield
    except _UNREADABLE as error:
        reason = str(getattr(error, "message", None) or error).partition("\n")[0]
        raise ValueError(f"The weights in {path!r} cannot be read: {reason}.") from error


def _loaded(path: str, load: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns an array, which may be the first part of a file to be found damaged."""
    with _path_named(path):
        return load()


def _checkpoint_at(path: str) -> Saved | None:
    """Returns the checkpoint of `callbacks.Checkpoint` at a path: itself, or the newest in it."""
    if tf.io.gfile.exists(os.path.join(path, RECORD)):
        checkpoint = read_checkpoint(path)
        checkpoint.check()
        return checkpoint
    newest = Folder(path).newest(Saved.check)
    if newest is None and Folder(path).steps():
        raise CorruptCheckpointError("none of its checkpoints is whole")
    return newest


def _of_path(path: str, averages: bool) -> list[Value]:
    if path.endswith(model_file.SUFFIXES):
        values = _of_keras_file(path)
        return _with_averages(values, path) if averages else values
    prefix = path
    if tf.io.gfile.isdir(path):
        prefix = tf.train.latest_checkpoint(path) or path
    if not (tf.io.gfile.exists(f"{prefix}.index") or place.is_v1(prefix)):
        raise place.nothing_at(path)
    return _chosen(list(_of_tensorflow(prefix)), path, averages)


def _of_checkpoint(saved: Saved, averages: bool) -> list[Value]:
    with saved.weights() as path:
        values = list(_of_h5(_content(path), path))
    if not averages:
        return values
    averaged = callback_states.arrays_of_class("MovingAverage", saved)
    found = [_of_array(name, array) for name, array in averaged]
    if not found:
        raise ValueError(
            f"{saved.path} has no averages: it was written without callbacks.MovingAverage. Leave "
            "out averages=True."
        )
    return [*found, *values]


def _of_keras_file(path: str) -> list[Value]:
    content = _content(path)
    if path.endswith(".keras"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(WEIGHTS)
    return list(_of_h5(content, path))


def _of_h5(content: bytes, path: str) -> Iterator[Value]:
    file = h5_file.opened(io.BytesIO(content), path)
    root = file.get("model_weights", file)
    if "layer_names" in root.attrs:
        yield from _of_legacy_h5(root)
        return
    names: dict[str, str] = {}
    found = []

    def visit(path: str, item: Any):
        if path.endswith("vars") and "name" in item.attrs:
            names[path.removesuffix("vars").rstrip("/")] = str(item.attrs["name"])
        if isinstance(item, h5py.Dataset) and not path.startswith("optimizer/"):
            found.append((path, item))

    file.visititems(visit)
    for path, item in found:
        yield Value(
            name=_readable(path, names),
            place=path,
            shape=tuple(item.shape),
            dtype=str(item.dtype),
            load=lambda item=item: np.asarray(item),
        )


def _readable(place: str, names: Mapping[str, str]) -> str:
    """Returns a place in a file, with names of layers: "stem/0" for "layers/dense/vars/0"."""
    *parts, _, index = place.split("/")
    readable = [
        names.get("/".join(parts[: end + 1]), part)
        for end, part in enumerate(parts)
        if part != "layers"
    ]
    return "/".join([*readable, index])


def _of_legacy_h5(root: Any) -> Iterator[Value]:
    for layer in root.attrs["layer_names"]:
        group = root[_text(layer)]
        for weight in group.attrs["weight_names"]:
            item = group[_text(weight)]
            yield Value(
                name=re.sub(r":\d+$", "", _text(weight)),
                shape=tuple(item.shape),
                dtype=str(item.dtype),
                load=lambda item=item: np.asarray(item),
            )


def _of_tensorflow(prefix: str) -> Iterator[Value]:
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    full_names = {}
    if _OBJECT_GRAPH in shapes:
        full_names = variable_adapter.full_names(reader.get_tensor(_OBJECT_GRAPH))
    for key in sorted(shapes):
        if dtypes[key].is_numpy_compatible and dtypes[key] != tf.string:
            yield Value(
                name=full_names.get(key) or key.removesuffix(_VALUE),
                shape=tuple(shapes[key]),
                dtype=dtypes[key].name,
                load=lambda key=key: reader.get_tensor(key),
            )


def _chosen(values: list[Value], source: str, averages: bool) -> list[Value]:
    return _with_averages(values, source) if averages else _without_averages(values)


def _with_averages(values: list[Value], source: str) -> list[Value]:
    found = {
        value.name.removesuffix(_AVERAGE): value
        for value in values
        if value.name.endswith(_AVERAGE)
    }
    if not found:
        raise ValueError(f"{source} has no averages. Leave out averages=True.")
    return [
        dataclasses.replace(found.get(value.name, value), name=value.name)
        for value in _without_averages(values)
    ]


def _without_averages(values: list[Value]) -> list[Value]:
    return [value for value in values if not value.name.endswith(_AVERAGE)]


def _of_array(name: str, array: Any) -> Value:
    array = np.asarray(array)
    return Value(name=name, shape=array.shape, dtype=str(array.dtype), load=lambda: array)


def _content(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
