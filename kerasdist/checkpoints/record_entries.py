"""What the record of a checkpoint must say for a training to go on from it.

Its sum tells that nobody has damaged it by accident. Who changes it by hand can make the sum right,
and is told what is wrong with it before it ends in an error far from here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from kerasdist.checkpoints.folder import RECORD, CorruptCheckpointError, Saved


def check(saved: Saved) -> None:
    """Checks the record of a checkpoint.

    Raises:
        CorruptCheckpointError: An entry is missing, or is not of its kind; names it.
    """
    for name, is_right in _ENTRIES.items():
        if name not in saved.record:
            raise CorruptCheckpointError(f"{saved.path}: {RECORD} has no {name!r}")
        if not is_right(value := saved.record[name]):
            raise CorruptCheckpointError(
                f"{saved.path}: {name!r} in {RECORD} cannot be {str(value)[:50]!r}"
            )


def _is_text(value) -> bool:
    return isinstance(value, str)


def _is_bool(value) -> bool:
    return isinstance(value, bool)


def _is_count(value) -> bool:
    return isinstance(value, int) and not _is_bool(value) and value >= 0


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not _is_bool(value)


def _is_time(value) -> bool:
    return _is_number(value) and math.isfinite(value)


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _dict_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(is_right, value.values()))


def _optional(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_history(value) -> bool:
    is_whole = isinstance(value, Mapping) and value.keys() == {"epoch", "history"}
    is_list = _dict_of(lambda values: isinstance(values, list))
    return is_whole and _list_of(_is_count)(value["epoch"]) and is_list(value["history"])


def _is_lengths(value) -> bool:
    return _dict_of(_is_count)(value) and "" in value


def _is_variable(value) -> bool:
    kinds = (_is_text, _is_text, _list_of(_is_count), _is_text)
    is_whole = isinstance(value, list) and len(value) == len(kinds)
    return is_whole and all(is_right(each) for is_right, each in zip(kinds, value, strict=True))


def _is_state(value) -> bool:
    is_named = isinstance(value, Mapping) and _is_text(value.get("class"))
    return is_named and _list_of(_is_text)(value.get("bases"))


_ENTRIES: dict[str, Callable[[Any], bool]] = {
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
    "num_iterators": _optional(_is_count),
    "callbacks": _list_of(_is_state),
    "writer": _is_text,
    "written": _is_text,
    "versions": _dict_of(_is_text),
}
