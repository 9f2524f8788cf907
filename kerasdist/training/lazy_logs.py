"""Logs that are computed when somebody reads them.

Stock Keras turns every log of every step into a Python number, which waits for the device each
time.
"""

import collections
import functools
from collections.abc import Callable, Mapping

import keras


class LazyLogs(collections.UserDict):
    """The logs of a step: a dict of floats that reads the metrics at its first use.

    Args:
        read: Returns the logs as a (nested) mapping of scalars; called at most once.

    Example:
        logs = LazyLogs(model.get_metrics_result)   # nothing is computed
        logs["loss"]                                # now it is
    """

    def __init__(self, read: Callable[[], Mapping]):
        self._read = read

    @functools.cached_property
    def data(self) -> dict[str, float]:
        return dict(sorted(_flatten(self._read())))


def _flatten(logs):
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flatten(value)
        else:
            yield name, _as_number(value)


def _as_number(value):
    array = keras.ops.convert_to_tensor(value).numpy()
    return float(array) if array.ndim == 0 else array
