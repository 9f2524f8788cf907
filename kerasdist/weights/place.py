"""Checks whether a path leads to weights, without TensorFlow, which takes seconds to load."""

import os

from kerasdist.support.remote_path import is_remote
from kerasdist.training.report import model_file

# callbacks.Checkpoint and TensorFlow write these into a folder.
_PREFIXES, _NAMES = ("step-", ".replaced-step-"), ("checkpoint", "checkpoint.json")
_NUM_SHOWN = 3
# How a checkpoint of TensorFlow's first format ends, which is one file, such as slim's vgg_16.ckpt.
_END_OF_V1 = bytes.fromhex("57fb808b247547db")


def check(path: str) -> None:
    """Checks that a path may lead to weights; remote or unreadable ones are left to the reader.

    Raises:
        ValueError: There is nothing, or something else.
    """
    if is_remote(path) or os.path.isfile(f"{path}.index"):
        return
    if not os.path.exists(path):
        raise nothing_at(path, ": no such file or folder")
    if not _has_weights(path):
        near = _inside(path)
        raise nothing_at(path, f", but at {', '.join(near)}" if near else "")


def nothing_at(path: str, reason: str = "") -> ValueError:
    """Returns the error that says what a path should lead to."""
    return ValueError(
        f"There are no weights at {path!r}{reason}. Name a folder of callbacks.Checkpoint, a "
        ".keras, .weights.h5 or .h5 file, or the prefix of a checkpoint of TensorFlow (without "
        ".index)."
    )


def is_v1(path: str) -> bool:
    """Whether a path is a checkpoint of TensorFlow in its first format, which is one file."""
    # An index of the second format ends likewise.
    if is_remote(path) or path.endswith(".index") or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - len(_END_OF_V1), 0))
            return file.read() == _END_OF_V1
    except OSError:
        return False


def _inside(path: str) -> list[str]:
    """Returns the first paths with weights in what may be the folder of a run."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    found = [inner for name in names if _has_weights(inner := os.path.join(path, name))]
    return found[:_NUM_SHOWN]


def _has_weights(path: str) -> bool:
    if os.path.isdir(path):
        return _is_folder_of_weights(path)
    # One would wait for what is written to a pipe.
    return (path.endswith(model_file.SUFFIXES) and os.path.isfile(path)) or is_v1(path)


def _is_folder_of_weights(path: str) -> bool:
    try:
        return any(name in _NAMES or name.startswith(_PREFIXES) for name in os.listdir(path))
    except PermissionError:
        return True
