"""Logs that are computed when somebody reads them.

Stock Keras turns every log of every step into a Python number, which waits for the device each
time.
"""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

# The log of an epoch that says how many batches came too late for their update.
STALE = "stale"


class LazyLogs(collections.UserDict, dict):  # ty: ignore[incompatible-method-override]
    """The logs of a step: a dict of numbers that reads the metrics at its first use.

    Copies are plain dicts. It is a dict for `isinstance` and for what is written in C alone; all
    methods are those of UserDict.

    Args:
        read: Returns the logs as numbers; called at most once. Over several workers all of them
            must call it, since the numbers are added up over them.
        read_of_worker: Returns the logs of this worker alone, which needs nobody else. Defaults to
            `read`.
        nesting: The names of the step's logs as `nesting_of` gives them; may be filled by `read`.

    Example:
        logs = LazyLogs(lambda: as_numbers(model.get_metrics_result()))   # nothing is computed
        logs["loss"]                                                      # now it is
    """

    def __init__(
        self,
        read: Callable[[], dict],
        *,
        read_of_worker: Callable | None = None,
        nesting: Mapping[str, Any] | None = None,
    ):
        dict.__setitem__(self, "", None)  # json.dumps looks there whether there is anything.
        self._read = read
        self._read_of_worker = read_of_worker
        self._nesting = {} if nesting is None else nesting

    @functools.cached_property
    def data(self) -> dict:
        return dict(self._read())

    @property
    def is_read(self) -> bool:
        """Whether the numbers are there, so that to look at them costs nothing."""
        return "data" in vars(self)

    @functools.cached_property
    def of_worker(self) -> "LazyLogs":
        """The logs of this worker alone."""
        return LazyLogs(self._read_of_worker) if self._read_of_worker else self

    def nested(self) -> dict:
        """Returns the numbers with the dicts in which the step returned them."""
        return self._nest(self)

    def _nest(self, numbers: Any):
        numbers = dict(numbers)  # Read before `nesting` is looked at.
        nested, used = _nested(numbers, self._nesting)
        # Callbacks may have added some.
        return nested | {name: each for name, each in numbers.items() if name not in used}

    def __bool__(self) -> bool:
        return True  # `logs or {}` reads nothing.

    def copy(self) -> Any:
        return dict(self)

    __copy__ = copy

    def __reduce__(self):
        return dict, (self.copy(),)

    def __or__(self, other: Any):
        return {**self, **other}

    def __ror__(self, other: Any):
        return {**other, **self}


class RecentLogs(LazyLogs):
    """Logs of workers that go on meanwhile: as they were at the last look, a second ago at most.

    Args:
        read: Returns the numbers of the last look.
        read_exact: Waits for the workers and returns the numbers of all steps.
        nesting: As of `LazyLogs`.
    """

    def __init__(
        self,
        read: Callable[[], dict],
        *,
        read_exact: Callable[[], dict],
        nesting: Mapping[str, Any] | None = None,
    ):
        super().__init__(read, nesting=nesting)
        self._read_exact = read_exact

    def exact(self) -> dict:
        """Returns the numbers of all steps, as `nested`; waits for them."""
        return self._nest(self._read_exact())


def as_numbers(logs: Mapping) -> dict:
    """Returns nested logs as a flat dict of floats (arrays of several numbers).

    Keras sorts the names, those of each nested dict by themselves.
    """
    numbers = {}
    for name, value in sorted(logs.items()):
        if isinstance(value, Mapping):
            numbers |= as_numbers(value)
        else:
            array = keras.ops.convert_to_tensor(value).numpy()
            numbers[name] = float(array.item()) if array.size == 1 else array
    return numbers


def nesting_of(logs: Mapping) -> dict:
    """Returns the names of nested logs: None for each number, a dict like this one for a dict."""
    return {
        name: nesting_of(value) if isinstance(value, Mapping) else None
        for name, value in logs.items()
    }


def _nested(numbers: Mapping, nesting: Mapping) -> tuple[dict, set[str]]:
    """Returns the numbers that `nesting` names in its dicts, and the names of those numbers."""
    nested, used = {}, set()
    for name, inner in nesting.items():
        if inner is not None:
            nested[name], used_inside = _nested(numbers, inner)
            used |= used_inside
        elif name in numbers:
            nested[name] = numbers[name]
            used.add(name)
    return nested, used
