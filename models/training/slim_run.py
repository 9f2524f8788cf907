"""A training with TF-Slim that goes on here: its step, weights, slots and moving averages.

Its checkpoint is name-based: model.ckpt-4321 holds LeNet/fc4/weights, beside it the slots
LeNet/fc4/weights/RMSProp and .../RMSProp_1, .../ExponentialMovingAverage, and global_step.
"""

import contextlib
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import kerasdist

from .. import weights
from ..usage_error import UsageError, in_one_line

# Of each optimizer here, the names of its slots there and here.
_SLOTS = {
    "adadelta": {"Adadelta": "accumulated_grad", "Adadelta_1": "accumulated_delta_var"},
    "adagrad": {"Adagrad": "accumulator"},
    "adam": {"Adam": "momentum", "Adam_1": "velocity"},
    "ftrl": {"Ftrl": "accumulator", "Ftrl_1": "linear"},
    "momentum": {"Momentum": "momentum"},
    "rmsprop": {"RMSProp": "velocity", "RMSProp_1": "momentum"},
    "sgd": {},
}
_AVERAGE = "ExponentialMovingAverage"
_NUMBERED = re.compile(r"(.*\.ckpt-(\d+))(\.index)?")


def find(folder: Path) -> str | None:
    """Returns the newest checkpoint of slim's in a folder; None if there is none.

    Raises:
        UsageError: Its file `checkpoint` names one, but none is there.
    """
    if not folder.is_dir():
        return None
    with _damage_named(repr(str(folder / "checkpoint"))):
        named = tf.train.latest_checkpoint(str(folder))
    if named:
        return named
    # The file holds the path that the folder had on another machine.
    found = [match for path in folder.iterdir() if (match := _NUMBERED.fullmatch(path.name))]
    if found:
        return str(folder / max(found, key=lambda match: int(match[2]))[1])
    if (folder / "checkpoint").is_file():
        raise UsageError(
            f"{str(folder)!r} has a file `checkpoint` of TensorFlow 1, but not the checkpoint that "
            "it names. Copy it there, or name another folder."
        )
    return None


def restore(
    model: keras.Model, path: str, values: flags.FlagValues, *, flag: str, only_step: bool
) -> dict[str, np.ndarray]:
    """Gives a compiled model what a checkpoint of slim's holds.

    Args:
        model: The net, with its optimizer.
        path: The prefix of the checkpoint, or its folder.
        values: The flags.
        flag: The one that names the checkpoint, with its value.
        only_step: Whether a checkpoint of this application will give the rest.

    Returns:
        The averages by path, for `MovingAverage.set_state`; {} without --moving_average_decay.

    Raises:
        UsageError: It is not of slim's, or of another net or optimizer, or at its last step.
    """
    path = find(Path(path)) or path
    reader = _read(path, flag)
    step = int(_tensor(reader, "global_step", flag))
    last = values.max_number_of_steps
    if last and last <= step:
        raise UsageError(
            f"{flag}: it has trained {step} steps already. Give a larger --max_number_of_steps, "
            f"which is {last}."
        )
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(step)
    if only_step:
        return {}
    slots = _slots(reader, values.optimizer, flag)
    names = weights.start(model, path, flag=flag)
    _restore_slots(model, reader, names, slots, flag)
    if kerasdist.is_chief():
        print(f"Going on from step {step} of TF-Slim: {flag}")
    return {} if values.moving_average_decay is None else _averages(model, reader, names, flag)


@contextlib.contextmanager
def _damage_named(flag: str) -> Generator[None]:
    try:
        yield
    except (tf.errors.OpError, ValueError, IndexError) as error:
        raise UsageError(f"{flag}: it cannot be read: {in_one_line(error)}") from error


def _tensor(reader: Any, name: str, flag: str) -> np.ndarray:
    with _damage_named(flag):
        return reader.get_tensor(name)


def _read(path: str, flag: str) -> Any:
    with _damage_named(flag):
        reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor("global_step"):
        raise UsageError(
            f"{flag}: it is not a training of TF-Slim, which counts its steps in global_step. "
            "--checkpoint_path takes weights alone, into another --train_dir."
        )
    return reader


def _slots(reader: Any, optimizer: str, flag: str) -> Mapping[str, str]:
    """Returns the names of the slots there and here."""
    there = {name.rpartition("/")[2] for name in reader.get_variable_to_shape_map()}
    found = [name for name, slots in _SLOTS.items() if slots and slots.keys() <= there]
    if found != ([optimizer] if _SLOTS[optimizer] else []):
        raise UsageError(
            f"{flag}: it was trained with {' and '.join(found) or 'sgd'}, and --optimizer is "
            f"{optimizer!r}. Give the same one, or take the weights alone: --checkpoint_path, with "
            "another --train_dir."
        )
    return _SLOTS[optimizer]


def _restore_slots(
    model: keras.Model,
    reader: Any,
    names: Mapping[str, str],
    slots: Mapping[str, str],
    flag: str,
) -> None:
    for there, here in slots.items():
        variables = [each for each in model.optimizer.variables if each.name.endswith(f"_{here}")]
        for variable, slot in zip(model.trainable_variables, variables, strict=True):
            name = f"{names[variable.path]}/{there}"
            if reader.has_tensor(name):  # Slim had none for what --trainable_scopes left out.
                slot.assign(_tensor(reader, name, flag).reshape(slot.shape))


def _averages(
    model: keras.Model, reader: Any, names: Mapping[str, str], flag: str
) -> dict[str, np.ndarray]:
    found = {}
    for path, name in names.items():
        average = f"{name}/{_AVERAGE}"
        found[path] = _tensor(reader, average if reader.has_tensor(average) else name, flag)
    return {each.path: found[each.path].reshape(each.shape) for each in model.weights}
