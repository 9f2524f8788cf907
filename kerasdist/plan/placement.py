"""Rows of the plan: the megabytes on each parameter server.

The workers wait for a task that holds most of the bytes, or all of the large weights.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from kerasdist.training.hooks import divided_values, scope_checks

# The largest of a task; the others are counted.
_NAMED = 3
_SMALLEST_NAMED_BYTES = 1000


class _Part(NamedTuple):
    """A variable, or a part of one, on a ps task."""

    ps: int
    name: str
    num_bytes: int
    is_slot: bool


def rows(model: keras.Model, *, num_ps: int) -> dict[str, str]:
    """Returns a line for each ps task, by its title.

    Args:
        model: A compiled model of our ParameterServerStrategy.
        num_ps: The ps tasks.

    Raises:
        RuntimeError: A variable was created outside the scope of the strategy.

    Example:
        rows(model, num_ps=2)["ps 0"]  # "0.201 MB: dense/kernel 0.201, 3 smaller"
    """
    scope_checks.check_placement(model)
    if not model.built:
        return {
            "variables": "made by `fit`; a model with an `Input` shows here what is on which ps"
        }
    slots = model.optimizer.variables if model.optimizer and model.optimizer.built else []
    parts = [*_parts(model.variables), *_parts(slots, are_slots=True)]
    described = {
        f"ps {index}": _describe([part for part in parts if part.ps == index])
        for index in range(num_ps)
    }
    if not slots:
        described["slots"] = "made by `fit`, each on the ps of its weight"
    return described


def _parts(variables: Iterable[keras.Variable], *, are_slots: bool = False) -> Iterator[_Part]:
    for variable in variables:
        parts = divided_values.parts_of(variable.value)
        for index, part in enumerate(parts):
            mark = f" (part {index + 1} of {len(parts)})" if len(parts) > 1 else ""
            yield _Part(
                ps=tf.DeviceSpec.from_string(part.device).task,
                name=variable.path + mark,
                num_bytes=math.prod(part.shape) * part.dtype.size,
                is_slot=are_slots,
            )


def _describe(parts: Sequence[_Part]) -> str:
    weights = [part for part in parts if not part.is_slot]
    slots = [part for part in parts if part.is_slot]
    text = f"{_megabytes(weights)} MB"
    if slots:
        text += f", and {_megabytes(slots)} MB of the optimizer"
    if not weights:
        return text
    large = [part for part in weights if part.num_bytes >= _SMALLEST_NAMED_BYTES]
    largest = sorted(large, key=lambda part: -part.num_bytes)[:_NAMED]
    names = [f"{part.name} {_megabytes([part])}" for part in largest]
    if num_others := len(weights) - len(largest):
        names.append(f"{num_others:,} smaller")
    return f"{text}: {', '.join(names)}"


def _megabytes(parts: Sequence[_Part]) -> str:
    megabytes = sum(part.num_bytes for part in parts) / 1e6
    return f"{megabytes:,.1f}" if megabytes >= 1 else f"{megabytes:.3f}"
