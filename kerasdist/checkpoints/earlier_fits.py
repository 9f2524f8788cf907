"""Which trainings have ended in this process, by the folder of their checkpoints."""

import collections
import os
import weakref

from kerasdist.remote_path import is_remote

# What `histories.read` says of each `fit` of a model that has ended, by folder: a script that is
# started again makes the same ones in the same order.
_histories = weakref.WeakKeyDictionary()
# The model of the last `fit` that has ended, by folder.
_last_models: dict[str, weakref.ref] = {}


def count(model, directory: str) -> int:
    """Returns how many `fit` of a model into a folder have ended."""
    return len(histories(model, directory))


def histories(model, directory: str) -> list[dict]:
    """Returns the History of each `fit` of a model into a folder that has ended, in order."""
    return list(_histories.get(model, {}).get(_key(directory), ()))


def note(model, directory: str, history: dict) -> None:
    """Notes that a `fit` has ended, with its History as `histories.read` gives it."""
    of_model = _histories.setdefault(model, collections.defaultdict(list))
    of_model[_key(directory)].append(history)
    _last_models[_key(directory)] = weakref.ref(model)


def is_last_of_another(model, directory: str) -> bool:
    """Whether the last `fit` that has ended trained another model there."""
    last = _last_models.get(_key(directory))
    return last is not None and last() is not model


def _key(directory: str) -> str:
    return directory if is_remote(directory) else os.path.realpath(directory)
