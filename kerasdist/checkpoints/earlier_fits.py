"""Which trainings have ended in this process, by the folder of their checkpoints."""

import collections
import os
import weakref

from kerasdist.support.remote_path import is_remote

# Each `fit` of a model that has ended, by folder: what `histories.read` says of it, and the step of
# its last checkpoint. A script that is started again makes the same ones in the same order.
_ended = weakref.WeakKeyDictionary()
# The model of the last `fit` that has ended, by folder.
_last_models: dict[str, weakref.ref] = {}


def count(model, directory: str) -> int:
    """Returns how many `fit` of a model into a folder have ended."""
    return len(_of(model, directory))


def histories(model, directory: str) -> list[dict]:
    """Returns the History of each `fit` of a model into a folder that has ended, in order."""
    return [history for history, _ in _of(model, directory)]


def ends(model, directory: str) -> list[int]:
    """Returns the step of the last checkpoint of each of them, which may have been removed."""
    return [step for _, step in _of(model, directory)]


def note(model, directory: str, history: dict, step: int) -> None:
    """Notes that a `fit` has ended.

    Args:
        model: Its model.
        directory: The folder of its checkpoints.
        history: Its History, as `histories.read` gives it.
        step: That of its last checkpoint.
    """
    of_model = _ended.setdefault(model, collections.defaultdict(list))
    of_model[_key(directory)].append((history, step))
    _last_models[_key(directory)] = weakref.ref(model)


def _of(model, directory: str) -> list[tuple[dict, int]]:
    return _ended.get(model, {}).get(_key(directory), [])


def is_last_of_another(model, directory: str) -> bool:
    """Whether the last `fit` that has ended trained another model there."""
    last = _last_models.get(_key(directory))
    return last is not None and last() is not model


def _key(directory: str) -> str:
    return directory if is_remote(directory) else os.path.realpath(directory)
