"""What a rehearsed step counts in Keras' metrics: do they say what they say on one device?

Sums over the replicas are those of one device if each example counts for itself. A step may also
update a metric with what it computes from several examples: which of them are alike, or how far one
is from the mean of its batch. Metrics of the user's own see all examples, and are left out.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import collectives, custom_parts
from kerasdist.training.replica import replicas

# What the variables of a metric hold, by the id of the metric.
_States = dict[int, list[np.ndarray]]


class RehearsedMetrics:
    """Reads what a step adds to the metrics of a model, in each run of a rehearsal.

    Args:
        model: A compiled model on several replicas.
    """

    def __init__(self, model):
        self._model = model
        self._metrics: dict[int, keras.metrics.Metric] = {}
        self._whole: _States = {}
        self._touched: _States = {}
        self._sums: _States = {}

    def begin(self) -> None:
        """Lets the metrics begin with zeros on this replica: a step may reset them, or not."""
        for metric in self._found().values():
            for variable in metric.variables:
                variable.assign(tf.zeros_like(variable.value))

    def _found(self) -> dict[int, keras.metrics.Metric]:
        metrics = filter(custom_parts.adds_up, custom_parts.metrics_of(self._model))
        # What holds metrics, the user's among them, counts nothing by itself.
        ones = [each for each in metrics if each.variables and not getattr(each, "metrics", ())]
        return {id(metric): metric for metric in ones}

    def _states(self) -> _States:
        """Returns what the metrics hold on this replica, those that the step has made as well."""
        self._metrics = self._found()
        return {
            key: [np.asarray(variable.value, "float64") for variable in metric.variables]
            for key, metric in self._metrics.items()
        }

    def keep_whole(self, *, is_touched: bool) -> None:
        """Keeps what a step with the whole batch has counted.

        Args:
            is_touched: Whether rounding has touched the batch.
        """
        added = self._states()
        if is_touched:
            self._touched = added
        else:
            self._whole = added

    def add_up(self) -> None:
        """Adds up what steps with the shares have counted; all replicas call it."""
        replica: Any = replicas.current()
        # Where each has the whole batch, the numbers of the first one are read.
        counts = float(replica.share if replica.has_whole_batch else replica.share > 0)
        added = self._states()
        flat = [
            counts * each.ravel()
            for key, whole in self._whole.items()
            for each in added.get(key, map(np.zeros_like, whole))
        ]
        if not flat:
            return
        (sums,) = collectives.sum_over_replicas([tf.constant(np.concatenate(flat))])
        left = iter(np.split(sums.numpy(), np.cumsum([each.size for each in flat])[:-1]))
        self._sums = {
            key: [next(left).reshape(each.shape) for each in whole]
            for key, whole in self._whole.items()
        }

    def differing(self, differs: Callable) -> list[str]:
        """Returns the names of the metrics whose results are not the same.

        Args:
            differs: Called with a result of the whole batch, of one that rounding has touched, and
                of what the replicas have added up.
        """
        return [
            metric.name
            for key, metric in self._metrics.items()
            if key in self._sums
            and any(
                differs(*results)
                for results in zip(
                    _results(metric, self._whole[key]),
                    _results(metric, self._touched.get(key, self._whole[key])),
                    _results(metric, self._sums[key]),
                    strict=True,
                )
            )
        ]


def _results(metric, state: list[np.ndarray]) -> list[np.ndarray]:
    """Returns what a metric gives whose variables hold this."""
    values = [
        tf.cast(value, variable.dtype)
        for value, variable in zip(state, metric.variables, strict=True)
    ]
    results = keras.tree.flatten(metric.stateless_result(values))
    return [np.asarray(tf.convert_to_tensor(each), "float64") for each in results]
