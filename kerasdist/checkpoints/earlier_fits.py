"""Remembers the `fit` that have ended in this process, by the folder of their checkpoints."""

import os
import weakref

import keras

from kerasdist.support import memory
from kerasdist.support.remote_path import is_remote


def count(model: keras.Model, directory: str) -> int:
    """Returns how many `fit` of a model into a folder have ended."""
    return len(_of(model, directory))


def histories(model: keras.Model, directory: str) -> list[dict]:
    """Returns the History of each `fit` of a model into a folder that has ended, in order."""
    return [history for history, _ in _of(model, directory)]


def ends(model: keras.Model, directory: str) -> list[int]:
    """Returns the step of the last checkpoint of each of them, which may have been removed."""
    return [step for _, step in _of(model, directory)]


def note(model: keras.Model, directory: str, history: dict, step: int) -> None:
    """Notes that a `fit` has ended.

    Args:
        model: Its model.
        directory: The folder of its checkpoints.
        history: Its History, as `histories.read` gives it.
        step: That of its last checkpoint.
    """
    memory.of_model(model).ended_fits.setdefault(_key(directory), []).append((history, step))
    memory.PROCESS.last_trained[_key(directory)] = weakref.ref(model)


def _of(model: keras.Model, directory: str) -> list[tuple[dict, int]]:
    return memory.of_model(model).ended_fits.get(_key(directory), [])


def is_last_of_another(model: keras.Model, directory: str) -> bool:
    """Whether the last `fit` that has ended trained another model there."""
    last = memory.PROCESS.last_trained.get(_key(directory))
    return last is not None and last() is not model


def _key(directory: str) -> str:
    return directory if is_remote(directory) else os.path.realpath(directory)
