"""Writes the files of Keras' `save` so that a kill leaves no half-written one.

Keras overwrites the earlier file, of which a kill or a full disk then leaves nothing.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from kerasdist.files.patient_file import PatientFile
from kerasdist.files.whole_file import can_be_whole, whole_file
from kerasdist.support import memory

if TYPE_CHECKING:
    import keras  # The commands that ask for SUFFIXES load without it.

SUFFIXES = (".keras", ".h5", ".hdf5")


@contextlib.contextmanager
def being_written() -> Generator[None]:
    """Lets what Keras' methods call inside, themselves routed, write as they are told."""
    outer, memory.THREAD.writes_file = is_being_written(), True
    try:
        yield
    finally:
        memory.THREAD.writes_file = outer


def is_being_written() -> bool:
    """Whether this thread is inside of `being_written`."""
    return memory.THREAD.writes_file


def write(original: Callable, model: "keras.Model", *args: Any, **kwargs: Any) -> Any:
    """Calls Keras' own function with another file, which takes the place of the one asked for.

    Keras itself handles what is not a single file on a disk (folders, shards, file objects, remote
    paths), what it has to ask about, and wrong arguments. Several files cannot be replaced at once.
    """
    try:
        given = inspect.signature(original).bind(model, *args, **kwargs)
    except TypeError:
        return original(model, *args, **kwargs)
    path = _path_of_one_file(given.arguments)
    if path is None or not can_be_whole(path):
        return original(model, *args, **kwargs)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(whole_file(path))
        if file.endswith(".weights.h5"):
            file = stack.enter_context(PatientFile(file))
        given.arguments["filepath"] = file
        return original(*given.args, **given.kwargs)


def _path_of_one_file(arguments: dict) -> str | None:
    path = arguments.get("filepath")
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path).endswith(SUFFIXES):
        return None
    others = {**arguments, **arguments.get("kwargs", {})}
    is_folder = others.get("zipped") is False
    is_asked_about = not others.get("overwrite", True) and os.path.exists(path)
    are_several = others.get("max_shard_size") is not None
    return None if is_folder or is_asked_about or are_several else os.fspath(path)
