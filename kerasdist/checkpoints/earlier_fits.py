"""Which trainings have ended in this process, by the folder of their checkpoints."""

import collections
import os
import weakref

from kerasdist.remote_path import is_remote

# How many `fit` of a model have ended, by folder: a script that is started again makes the same
# ones in the same order.
_num_fits = weakref.WeakKeyDictionary()
# The model of the last `fit` that has ended, by folder.
_last_models: dict[str, weakref.ref] = {}


def count(model, directory: str) -> int:
    """Returns how many `fit` of a model into a folder have ended."""
    return _num_fits.get(model, {}).get(_key(directory), 0)


def note(model, directory: str) -> None:
    """Notes that a `fit` has ended."""
    _num_fits.setdefault(model, collections.Counter())[_key(directory)] += 1
    _last_models[_key(directory)] = weakref.ref(model)


def is_last_of_another(model, directory: str) -> bool:
    """Whether the last `fit` that has ended trained another model there."""
    last = _last_models.get(_key(directory))
    return last is not None and last() is not model


def _key(directory: str) -> str:
    return directory if is_remote(directory) else os.path.realpath(directory)
