"""What a rehearsed step returns: does the mean over the replicas say what one device says?

A log of a train_step counts as a mean over the examples. The norm of the errors, a maximum, a
root, or how many examples there are is none, and its mean over the replicas is another number.
Results of metrics are left out: they are read for all examples, and what the metrics count is
compared in their place.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import collectives
from kerasdist.support.text import short_list
from kerasdist.training.losses.metric_results import MetricResults
from kerasdist.training.replica import replicas
from kerasdist.training.step.step_logs import describe_rows, name_of
from kerasdist.training.trial import compare, nearby_weights, tolerances
from kerasdist.training.trial.rehearsed_metrics import RehearsedMetrics


class RehearsedLogs:
    """Collects what a step returns in a rehearsal: twice for the whole batch, then divided.

    Args:
        model: A compiled model on several replicas.
        is_training: Whether the step is its train_step.
    """

    def __init__(self, model, *, is_training: bool = True):
        self._model, self._is_training = model, is_training
        self._results = MetricResults(model)
        self._metrics = RehearsedMetrics(model)
        self._wholes: dict[bool, dict[tuple, np.ndarray]] = {}
        self._logs: Any = None
        self._shapes: dict[tuple, tuple] = {}
        self._means: dict[tuple, np.ndarray] = {}

    def watched(self) -> contextlib.AbstractContextManager:
        """Returns a context for the divided run, in which results of metrics are told."""
        return self._results.watched()

    def run_whole(self, step: Callable, touched, data) -> None:
        """Runs `step` with the whole batch, or with `touched`, the same but for rounding."""
        self._metrics.begin()
        if data is touched:  # Inputs such as words cannot be.
            nearby_weights.move(self._model, tolerances.LAST_BITS)
        arrays = _arrays_of(step(data))
        self._metrics.keep_whole(is_touched=data is touched)
        self._wholes[data is touched] = arrays
        self._wholes.setdefault(False, arrays)  # Of what rounding does not touch they are the same.

    def run_part(self, step: Callable, data) -> None:
        """Runs `step` with the share of a replica; all of them call it, inside of `watched()`."""
        self._metrics.begin()
        logs = step(data)
        self._metrics.add_up()
        replica: Any = replicas.current()
        arrays = _arrays_of(logs)
        flat = [
            _part_of(arrays.get(path), whole.shape, float(replica.share))
            for path, whole in self._wholes[False].items()
        ]
        self._logs, self._shapes = logs, {path: each.shape for path, each in arrays.items()}
        if not flat:
            return
        (sums,) = collectives.sum_over_replicas([tf.constant(np.concatenate(flat))])
        start = 0
        for path, whole in self._wholes[False].items():
            self._means[path] = sums.numpy()[start : start + whole.size].reshape(whole.shape)
            start += whole.size

    def describe(self, num_replicas: int, tolerance: float) -> list[str]:
        """Returns in words what is not the same.

        Args:
            num_replicas: Over all workers.
            tolerance: Of the largest number of a log.
        """
        results = self._results.among(self._logs) if isinstance(self._logs, dict) else {}
        texts, differing = [], []
        for path, whole in self._wholes[False].items():
            if path in results:
                continue
            shape = self._shapes.get(path)
            if shape != whole.shape:
                texts.append(describe_rows(path, [whole.shape, shape or ()]))
                continue
            touched = self._wholes[True].get(path, whole)
            if compare.results_differ(whole, touched, self._means[path], tolerance):
                differing.append((name_of(path), whole, self._means[path]))
        if differing:
            describe = _describe_numbers if self._is_training else _describe_evaluation
            texts.append(describe(differing, num_replicas))
        if texts:  # Metrics of the same numbers are no news.
            return texts
        allowed = functools.partial(compare.results_differ, tolerance=tolerance)
        names = self._metrics.differing(allowed)
        return [_describe_counted(names, num_replicas)] if names else []


def _arrays_of(logs) -> dict[tuple, np.ndarray]:
    """Returns the numbers in logs by their paths, as float64."""
    arrays = {}
    for path, leaf in keras.tree.flatten_with_path(logs):
        value = leaf.value if isinstance(leaf, keras.Variable) else leaf
        array = np.asarray(tf.convert_to_tensor(value)) if value is not None else np.array("")
        if array.dtype.kind in "biufV":  # NumPy does not know bfloat16.
            arrays[path] = array.astype("float64")
    return arrays


def _part_of(array, shape, share: float) -> np.ndarray:
    if array is None or array.shape != shape or not share:
        return np.zeros(shape).ravel()
    return array.ravel() * share


def _describe_numbers(differing: list, num_replicas: int) -> str:
    name, whole, mean = differing[0]
    names = ", ".join(f"'{each}'" for each, *_ in differing)
    return (
        f"What the step returns as {names} is not what it is on one device: '{name}' of a few "
        f"examples is {whole.flat[0]:.4g} there, and {mean.flat[0]:.4g} over {num_replicas} "
        "replicas. The weights are right, but what a step returns is averaged over the examples of "
        "all replicas, and a maximum, a root, a deviation, a norm or a number of examples is "
        "no mean. Compute it from `kerasdist.global_mean(values)` and "
        "`kerasdist.global_sum(values)`, as in `tf.sqrt(kerasdist.global_mean(errors**2))`, or in "
        "a metric of your own, which sees all examples."
    )


def _describe_counted(names: list[str], num_replicas: int) -> str:
    return (
        f"What the metric {short_list(map(repr, names), 3)} counts in a step is not what it counts "
        "on one device: it is computed from several examples of the batch, or once for a batch, "
        f"and each of {num_replicas} replicas has examples of its own. Update a metric of your "
        "own, which sees all examples, with the outputs of the model, and compute it there."
    )


def _describe_evaluation(differing: list, num_replicas: int) -> str:
    name, whole, mean = differing[0]
    names = ", ".join(dict.fromkeys(f"'{each}'" for each, *_ in differing))
    return (
        f"What `evaluate` gives as {names} is not what it is on one device: '{name}' of a few "
        f"examples is {whole.flat[0]:.4g} there, and {mean.flat[0]:.4g} over {num_replicas} "
        "replicas. Each replica computes losses, and what a test_step returns, from its own "
        "examples, and they are averaged over the examples of all replicas. A maximum, a root, a "
        "deviation, a sum or a number of examples is no mean, nor is what a layer computes from "
        "several examples. Compute it from `kerasdist.global_mean(values)` and "
        "`kerasdist.global_sum(values)`, as in `tf.sqrt(kerasdist.global_mean(errors**2))`, or in "
        "a metric of your own, which sees all examples."
    )
