"""What a run of Keras' tests did, and where two runs differ."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import keras
import numpy as np


@dataclasses.dataclass
class Record:
    """What one run of the tests did, by the name of the test.

    Attributes:
        outcomes: "passed", "failed" or "skipped".
        messages: The end of what pytest says of it.
        calls: The name of each method that the test called and what it returned, in order.
    """

    outcomes: dict[str, str] = dataclasses.field(default_factory=dict)
    messages: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: dict[str, list[tuple[str, Any]]] = dataclasses.field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the record to a file."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Reads a record from a file."""
        return pickle.loads(path.read_bytes())


def as_plain(value: Any) -> Any:
    """Returns what a method of a model returned in a form that outlives its process.

    Returns:
        Dicts and lists as they are; anything else as a pair of its type's name and an array.
    """
    if isinstance(value, keras.callbacks.History):
        return {"epoch": as_plain(value.epoch), **as_plain(value.history)}
    if type(value) is dict:
        return {key: as_plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [as_plain(each) for each in value]
    if hasattr(value, "to_tensor"):  # Ragged.
        return type(value).__name__, value.to_list()
    if keras.ops.is_tensor(value):
        return type(value).__name__, keras.ops.convert_to_numpy(value)
    return type(value).__name__, value if isinstance(value, str) else np.asarray(value)


def difference(calls: list, other: list, *, tolerance: float) -> str:
    """Returns where two lists of calls differ first, or "".

    Args:
        calls: Those of plain Keras.
        other: Those that should equal them.
        tolerance: How far numbers may be apart, in parts of them where they are above 1.
    """
    for number, (one, two) in enumerate(zip(calls, other, strict=False), start=1):
        if one[0] != two[0]:
            return f"call {number} is {two[0]}, not {one[0]}"
        found = _difference(one[1], two[1], tolerance)
        if found:
            return f"call {number}, {one[0]}{found}"
    if len(calls) != len(other):
        return f"{len(other)} calls, not {len(calls)}"
    return ""


def _difference(one, two, tolerance) -> str:
    if isinstance(one, dict) and isinstance(two, dict) and list(one) == list(two):
        pairs = ((f"[{key!r}]", one[key], two[key]) for key in one)
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = ((f"[{index}]", *pair) for index, pair in enumerate(zip(one, two, strict=True)))
    else:
        return _difference_of_leaves(one, two, tolerance)
    return next((at + found for at, *pair in pairs if (found := _difference(*pair, tolerance))), "")


def _difference_of_leaves(one, two, tolerance) -> str:
    if not isinstance(one, tuple) or not isinstance(two, tuple) or one[0] != two[0]:
        return f": {_short(two)}, not {_short(one)}"
    one, two = one[1], two[1]
    if not isinstance(one, np.ndarray) or one.dtype.kind not in "fiub":
        return "" if np.all(one == two) else f": {_short(two)}, not {_short(one)}"
    if one.shape != two.shape or one.dtype != two.dtype:
        return f": {two.dtype}{two.shape}, not {one.dtype}{one.shape}"
    worst = _largest_difference(one.astype("float64"), two.astype("float64"))
    return "" if worst <= tolerance else f": {_short(two)}, not {_short(one)} (by {worst:.1e})"


def _largest_difference(one, two) -> float:
    """Returns how far two arrays are apart; infinite where one of them alone is NaN."""
    is_same = (one == two) | (np.isnan(one) & np.isnan(two))
    with np.errstate(invalid="ignore"):
        apart = np.where(is_same, 0, np.abs(one - two) / np.maximum(1, np.abs(one)))
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0))


def _short(value) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
