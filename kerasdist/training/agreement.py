"""What all workers must have in common before they train together, compared among them."""

import contextlib
import hashlib
import inspect
import itertools
import json
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kerasdist.short_list import short_list
from kerasdist.training import peers

# Arguments of `fit` that say how many steps there are.
_ARGUMENTS = ("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "validation_steps")
_MOST_SHOWN = 4


def check_fit(model, callbacks, arguments: inspect.BoundArguments) -> None:
    """Compares a call of `fit` with those of the other workers.

    Args:
        model: That is trained.
        callbacks: Those that change the update.
        arguments: What `fit` was called with.

    Raises:
        ValueError: On every worker, where they differ; says in what, and what each of them has.
    """
    strategy = model.distribute_strategy
    if peers.count(strategy) > 1:
        _check(strategy, _facts(model, callbacks, arguments))


def _facts(model, callbacks, arguments) -> dict[str, str]:
    """Returns what has to be equal, by the name that a message gives it."""
    arguments.apply_defaults()
    facts = {name: arguments.arguments.get(name) for name in _ARGUMENTS}
    facts["steps_per_execution"] = getattr(model, "steps_per_execution", None)
    named = ", ".join(type(each).__name__ for each in callbacks)
    facts["the list of callbacks of the update"] = named or "empty"
    facts |= _settings(getattr(model, "optimizer", None))
    # Without paths: Keras numbers names anew in each process.
    for index, variable in enumerate(model.weights):
        kind = "trained" if variable.trainable else "not trained"
        dtype = keras.backend.standardize_dtype(variable.dtype)
        facts[f"weight {index}"] = f"{dtype} {tuple(variable.shape)}, {kind}"
    return {name: str(value) for name, value in facts.items() if _is_plain(value)}


def _settings(optimizer) -> dict[str, Any]:
    settings = {}
    # What the user's own optimizer raises here: plain `fit` does not ask for its settings.
    with contextlib.suppress(Exception):
        settings = optimizer.get_config()
    named = {f"optimizer's {name}": value for name, value in settings.items() if name != "name"}
    return {"optimizer": type(optimizer).__name__, **named}


def _is_plain(value) -> bool:
    """Whether the text of a value is the same in each process: an object's may hold an address."""
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _check(strategy, facts: dict[str, str]) -> None:
    text = json.dumps(facts, sort_keys=True).encode()
    digests = peers.gather(strategy, np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    # Padded to one length: what is gathered has one shape on all workers.
    length = int(peers.gather(strategy, np.array([len(text)])).max())
    rows = peers.gather(strategy, np.frombuffer(text.ljust(length), np.uint8))
    every = [json.loads(row.astype(np.uint8).tobytes()) for row in rows]
    told = [
        _told(name, [each.get(name, "nothing") for each in every], strategy)
        for name in dict.fromkeys(itertools.chain(*every))
        if len({each.get(name) for each in every}) > 1
    ]
    shown = short_list(told, _MOST_SHOWN, separator="; ")
    raise ValueError(
        f"The workers are about to train different things: {shown}. Run the same program with the "
        "same arguments on all of them, and build the model in the same way."
    )


def _told(name: str, values: list[str], strategy) -> str:
    tasks = peers.tasks(strategy)
    each = ", ".join(f"{value} on {task}" for task, value in zip(tasks, values, strict=True))
    return f"{name} is {each}"
