"""What all workers must have in common before they train together, compared among them."""

import contextlib
import hashlib
import inspect
import itertools
import json
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training import peers

# Arguments of `fit` that say how many steps there are.
_ARGUMENTS = ("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "validation_steps")
_MOST_SHOWN = 4
# Of a number: far above what machines of other kinds may round.
_DRIFT = 1e-4
_NEGLIGIBLE = 1e-6


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


def warn_of_drift(model, epoch: int) -> bool:
    """Warns where the workers train from other weights, or at another rate, than each other.

    All of them get the same updates, so only their own programs can make them differ. All workers
    must call it.

    Args:
        model: That is trained.
        epoch: The one that is over, from 0.

    Returns:
        Whether they differ.
    """
    strategy = model.distribute_strategy
    numbers = _numbers(model)
    rows = _gathered(strategy, np.array(list(numbers.values())))
    scales = np.maximum(np.abs(rows).max(axis=0), _NEGLIGIBLE)
    apart = np.nan_to_num(np.ptp(rows, axis=0) / scales) > _DRIFT
    if not apart.any():
        return False
    names = [name for name, is_apart in zip(numbers, apart, strict=True) if is_apart]
    told = f"{', '.join(names[:_MOST_SHOWN])}{', ...' if len(names) > _MOST_SHOWN else ''}"
    warnings.warn(
        f"The workers have drifted apart: after epoch {epoch + 1} they differ in {told}. Whatever "
        "changes weights or the learning rate, such as a callback, must do the same on all "
        "workers: decide by the logs of `on_epoch_end`, which are those of all workers (those of "
        "`on_train_batch_end` are of one), not by the clock, and draw random numbers from one "
        "seed.",
        stacklevel=2,
    )
    return True


def _numbers(model) -> dict[str, float]:
    """Returns numbers that differ where the state of the training does, by its name."""
    numbers = {
        f"'{variable.path}'": float(tf.norm(tf.cast(variable.value, tf.float32)))
        for variable in model.trainable_variables
    }
    with contextlib.suppress(Exception):  # An optimizer of the user's own need not have a rate.
        numbers["the learning rate"] = float(model.optimizer.learning_rate)
    return numbers


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
    digests = _gathered(strategy, np.frombuffer(hashlib.sha256(text).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    # Padded to one length: what is gathered has one shape on all workers.
    length = int(_gathered(strategy, np.array([len(text)])).max())
    rows = _gathered(strategy, np.frombuffer(text.ljust(length), np.uint8))
    every = [json.loads(row.astype(np.uint8).tobytes()) for row in rows]
    told = [
        _told(name, [each.get(name, "nothing") for each in every], strategy)
        for name in dict.fromkeys(itertools.chain(*every))
        if len({each.get(name) for each in every}) > 1
    ]
    shown = "; ".join(told[:_MOST_SHOWN]) + ("; ..." if len(told) > _MOST_SHOWN else "")
    raise ValueError(
        f"The workers are about to train different things: {shown}. Run the same program with the "
        "same arguments on all of them, and build the model in the same way."
    )


def _gathered(strategy, row: np.ndarray) -> np.ndarray:
    """Returns the rows of all workers, [workers, size]."""
    rows = np.zeros((peers.count(strategy), len(row)))
    rows[peers.index_of(strategy)] = row
    return peers.sum_over(strategy, rows)


def _told(name: str, values: list[str], strategy) -> str:
    tasks = peers.tasks(strategy)
    each = ", ".join(f"{value} on {task}" for task, value in zip(tasks, values, strict=True))
    return f"{name} is {each}"
