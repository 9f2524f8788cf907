"""The record of a checkpoint: a file of JSON that says where the training is, and what it is.

Its sum tells that nobody has damaged it by accident. Who changes it by hand can make the sum right,
and is told what is wrong with it before it ends in an error far from here.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

RECORD = "checkpoint.json"
_Check = Callable[[Any], bool]


class CorruptCheckpointError(Exception):
    """A checkpoint is not what was written; the message names the file."""


def read(path: str) -> dict[str, Any]:
    """Returns the record in the folder of a checkpoint.

    Raises:
        ValueError: It is not what was written.
        OSError, tf.errors.OpError: It cannot be read.
    """
    with tf.io.gfile.GFile(os.path.join(path, RECORD), "rb") as file:
        content = file.read()
    record: Any = None
    try:
        record = json.loads(content)
        is_whole = record.pop("crc32") == _sum_of(record)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{RECORD} is not what was written")
    return record


def write(folder: str, record: Mapping[str, Any]) -> None:
    """Writes a record into a folder on a disk of this machine."""
    record = json.loads(json.dumps(record))  # As it is read: with text for the keys of all dicts.
    with open(os.path.join(folder, RECORD), "w") as file:
        json.dump({**record, "crc32": _sum_of(record)}, file, indent=1)


def check(path: str, record: Mapping[str, Any]) -> None:
    """Checks that a training can go on from what a record says.

    Args:
        path: The folder of its checkpoint, for the message.
        record: As it was read.

    Raises:
        CorruptCheckpointError: An entry is missing, or is not of its kind; names it.
    """
    for name, is_right in _ENTRIES.items():
        if name not in record:
            raise CorruptCheckpointError(f"{path}: {RECORD} has no {name!r}")
        if not is_right(value := record[name]):
            raise CorruptCheckpointError(
                f"{path}: {name!r} in {RECORD} cannot be {str(value)[:50]!r}"
            )


def _sum_of(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not _is_bool(value) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not _is_bool(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _list_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _dict_of(is_right: _Check) -> _Check:
    return lambda value: isinstance(value, Mapping) and all(map(is_right, value.values()))


def _optional(is_right: _Check) -> _Check:
    return lambda value: value is None or is_right(value)


def _is_history(value: Any) -> bool:
    is_whole = isinstance(value, Mapping) and value.keys() == {"epoch", "history"}
    is_list = _dict_of(lambda values: isinstance(values, list))
    return is_whole and _list_of(_is_count)(value["epoch"]) and is_list(value["history"])


def _is_lengths(value: Any) -> bool:
    return _dict_of(_is_count)(value) and "" in value


def _is_variable(value: Any) -> bool:
    kinds = (_is_text, _is_text, _list_of(_is_count), _is_text)
    is_whole = isinstance(value, list) and len(value) == len(kinds)
    return is_whole and all(is_right(each) for is_right, each in zip(kinds, value, strict=True))


def _is_data(value: Any) -> bool:
    if not isinstance(value, Mapping) or not _is_bool(value.get("is_begun")):
        return False
    counts = {name: each for name, each in value.items() if name != "is_begun"}
    known = {"num_iterators", "num_parts", "num_steps", "num_states", "texts"}
    return known <= counts.keys() <= {*known, "next_size"} and _dict_of(_is_count)(counts)


def _is_state(value: Any) -> bool:
    is_named = isinstance(value, Mapping) and _is_text(value.get("class"))
    return is_named and _list_of(_is_text)(value.get("bases"))


_ENTRIES: dict[str, _Check] = {
    "epoch": _is_count,
    "step": _is_count,
    "is_finished": _is_bool,
    "num_logged": _optional(_is_lengths),
    "monitored": _dict_of(_optional(_is_number)),
    "run": _is_text,
    "fit": _is_count,
    "first_epoch": _optional(_is_count),
    "updates": _is_count,
    "epochs": _is_count,
    "history": _is_history,
    "earlier_histories": _list_of(_is_history),
    "ends": _list_of(_is_count),
    "variables": _list_of(_is_variable),
    "metrics": _list_of(_is_text),
    "other_optimizers": _list_of(_is_text),
    "batch_size": _optional(_is_count),
    "learning_rates": _list_of(_is_number),
    "time": _is_time,
    "data": _optional(_is_data),
    "given": _list_of(_is_count),
    "callbacks": _list_of(_is_state),
    "writer": _is_text,
    "written": _is_text,
    "versions": _dict_of(_is_text),
}
