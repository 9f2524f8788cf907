"""Compare what the replicas give with what one device gives: gradients, results and assignments.

What is compared comes from runs of some examples: of one device twice, as it is (the truth) and
with inputs that rounding has touched (its twin), and of the replicas.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.trial import tolerances
from kerasdist.training.trial.outcome import CUSTOM_SUM, Arrays, Outcome, Updates
from kerasdist.training.trial.tolerances import is_rounding


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GradientDifference:
    """Where the gradient over the replicas is not that of the whole batch.

    Attributes:
        variable: Path of the variable whose gradient differs most; "predictions" for those, and
            `CUSTOM_SUM` for a sum of the program's own.
        size: Norm of the difference over the norm of the larger gradient, of that variable; not
            finite where only one of them is.
        is_sum: Whether all gradients would have to be multiplied by the number of replicas, about.
    """

    variable: str
    size: float
    is_sum: bool


def gradients(
    truth: Outcome, twin: Outcome, ours: Outcome, *, tolerance: float, num_replicas: int
) -> GradientDifference | None:
    """Returns where the gradient over the replicas is not that of the whole batch, or None.

    Args:
        truth: The outcome of one device.
        twin: The same with inputs that rounding has touched.
        ours: That of the replicas.
        tolerance: How much of the norm of a gradient may be rounding.
        num_replicas: In all.
    """
    pairs = _pairs(truth.updates, ours.updates)
    worst, size = _largest(pairs, tolerance)
    _, of_twin = _largest(_pairs(truth.updates, twin.updates), 0.0)
    if is_rounding(size, tolerance, of_twin=of_twin):
        return None
    each = list(itertools.chain(*pairs))
    apart = math.hypot(*(_norm(whole - num_replicas * shared) for _, whole, shared in each))
    norm = math.hypot(*(_norm(whole) for _, whole, _ in each))
    is_sum = math.isfinite(size) and apart <= tolerances.SUM * norm
    return GradientDifference(variable=worst, size=size, is_sum=is_sum)


def gradient_of(truth: Outcome, ours: Outcome, variable: str) -> np.ndarray:
    """Returns by how much the gradients of a variable differ: float64, of all updates in a row.

    Args:
        truth: See `gradients`.
        ours: See `gradients`.
        variable: Its path, as in a `GradientDifference`.
    """
    differences = [
        np.ravel(whole - shared)
        for path, whole, shared in itertools.chain(*_pairs(truth.updates, ours.updates))
        if path == variable
    ]
    return np.concatenate([np.zeros(0), *differences])


def _largest(updates: list[list[tuple]], tolerance: float) -> tuple[str, float]:
    """Returns which gradients differ most, and by how much; by 0.0 where there are none.

    Where it is a sum of the program's own, it is the cause of what differs after it.
    """
    differences = list(itertools.chain(*map(_relative_differences, updates)))
    sums = [each for each in differences if each[0] == CUSTOM_SUM and each[1] > tolerance]
    found = sums or differences or [("", 0.0)]
    return max(found, key=lambda each: np.nan_to_num(each[1], nan=np.inf))


def _relative_differences(pairs: list[tuple]) -> list[tuple[str, float]]:
    """Returns how much the gradients of one update differ, as a part of their norms, by name."""
    norms = [(_norm(whole), _norm(shared)) for _, whole, shared in pairs]
    norm = max(
        (math.hypot(*filter(math.isfinite, each)) for each in zip(*norms, strict=True)), default=0.0
    )
    smallest = max(tolerances.SMALL_GRADIENT * norm, np.finfo("float32").tiny)
    return [
        (path, float(_norm(whole - shared) / max(*both, smallest)))
        for (path, whole, shared), both in zip(pairs, norms, strict=True)
        if np.isfinite(both).any()
    ]


def _pairs(truth: Updates, ours: Updates) -> list[list[tuple]]:
    """Returns for each update, and for the program's own sums, names and both gradients."""
    updates, sums = (
        [
            _pairs_of_update(*each)
            for each in zip(_of_kind(truth, is_sum), _of_kind(ours, is_sum), strict=False)
        ]
        for is_sum in (False, True)
    )
    return [*updates, list(itertools.chain(*sums))]


def _of_kind(updates: Updates, is_sum: bool) -> Updates:
    return [each for each in updates if (each[0] == [CUSTOM_SUM]) is is_sum]


def _pairs_of_update(whole_update: tuple, shared_update: tuple) -> list[tuple]:
    (paths, wholes), (_, shareds) = whole_update, shared_update
    return [
        (path, as_array(whole), as_array(shared))
        for path, whole, shared in zip(paths, wholes, shareds, strict=True)
        if whole is not None and shared is not None
    ]


def as_array(gradient: Any) -> np.ndarray:
    """Returns a tensor, or `IndexedSlices`, as float64."""
    return np.asarray(tf.convert_to_tensor(gradient), "float64")


def _norm(array: np.ndarray) -> float:
    return math.sqrt(np.vdot(array, array))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogDifferences:
    """What a step returns and counts that is not the same over the replicas.

    Attributes:
        shapes: The paths of logs with their shapes on one device and on a replica.
        numbers: The paths of logs with what one device gives and what the replicas give.
        metrics: The names of metrics of other results; only where the logs are the same.
    """

    shapes: list[tuple[tuple, list[tuple]]]
    numbers: list[tuple[tuple, np.ndarray, np.ndarray]]
    metrics: list[str]

    def __bool__(self):
        return bool(self.shapes or self.numbers or self.metrics)


def logs(
    metrics: dict[int, keras.metrics.Metric],
    truth: Outcome,
    twin: Outcome,
    ours: Outcome,
    tolerance: float,
) -> LogDifferences:
    """Returns what a step returns and counts that is not the same over the replicas.

    Results of metrics are left out: they are read for all examples, and what the metrics count is
    compared in their place.

    Args:
        metrics: Those that add up, by their ids.
        truth: See `gradients`.
        twin: See `gradients`.
        ours: See `gradients`.
        tolerance: Of the largest number of a log.
    """
    shapes, numbers, names = [], [], []
    for path, whole in truth.logs.items():
        if path in ours.results:
            continue
        shape = ours.shapes.get(path)
        if shape != whole.shape:
            shapes.append((path, [whole.shape, shape or ()]))
        elif results_differ(whole, twin.logs.get(path, whole), ours.logs[path], tolerance):
            numbers.append((path, whole, ours.logs[path]))
    if not shapes and not numbers:  # Metrics of the same numbers are no news.
        names = _metrics_that_differ(metrics, truth, twin, ours, tolerance)
    return LogDifferences(shapes=shapes, numbers=numbers, metrics=names)


def _metrics_that_differ(
    metrics: dict, truth: Outcome, twin: Outcome, ours: Outcome, tolerance: float
) -> list[str]:
    return [
        metric.name
        for key, metric in metrics.items()
        if key in ours.counts
        and any(
            results_differ(*results, tolerance)
            for results in zip(
                _results(metric, truth.counts[key]),
                _results(metric, twin.counts.get(key, truth.counts[key])),
                _results(metric, ours.counts[key]),
                strict=True,
            )
        )
    ]


def _results(metric: keras.metrics.Metric, state: list[np.ndarray]) -> list[np.ndarray]:
    """Returns what a metric gives whose variables hold this."""
    values = [
        tf.cast(value, variable.dtype)
        for value, variable in zip(state, metric.variables, strict=True)
    ]
    results = keras.tree.flatten(metric.stateless_result(values))
    return [np.asarray(tf.convert_to_tensor(each), "float64") for each in results]


def outputs(
    truth: Arrays, twin: Arrays, ours: Arrays, tolerance: float
) -> tuple[tuple, np.ndarray, np.ndarray | None] | None:
    """Returns the path of an output that is another one, that of one device and ours; or None.

    Args:
        truth: The outputs of one device, of any dtype.
        twin: The same with inputs that rounding has touched.
        ours: Those of the replicas, joined.
        tolerance: Of the largest number of an output.
    """
    for path, whole in truth.items():
        joined = ours.get(path)
        is_shaped = joined is not None and joined.shape == whole.shape
        if not is_shaped or outputs_differ(whole, twin.get(path, whole), joined, tolerance):
            return path, whole, joined
    return None


def results_differ(truth: np.ndarray, twin: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Whether an array of divided examples is not that of the whole batch; not where it is NaN.

    Args:
        truth: Of one device: float64.
        twin: The same with inputs that rounding has touched; of another shape, rounding decides.
        ours: That of the replicas, of the same shape.
        tolerance: Of the largest number.
    """
    if not truth.size or not np.isfinite(truth).all():
        return False
    largest = max(np.abs(truth).max(), np.abs(ours).max())
    return not is_rounding(
        np.abs(truth - ours).max(),
        tolerance,
        scale=largest if np.isfinite(largest) else 0.0,
        of_twin=np.abs(truth - twin).max() if twin.shape == truth.shape else np.inf,
        near_zero=tolerances.RESULT_NEAR_ZERO,
    )


def outputs_differ(truth: np.ndarray, twin: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Whether an output of any dtype is another one; see `results_differ`.

    Where one device gives what is not finite, nothing is asked.
    """
    if twin.shape != truth.shape:  # Rounding decides.
        return False
    if truth.dtype.kind not in "fV":  # NumPy does not know bfloat16.
        return bool(((truth != ours) & (truth == twin)).any())
    truth, twin, ours = (each.astype("float64") for each in (truth, twin, ours))
    are_finite = functools.reduce(np.logical_and, map(np.isfinite, (truth, twin)))
    if not np.isfinite(ours[are_finite]).all():
        return True
    return results_differ(truth[are_finite], twin[are_finite], ours[are_finite], tolerance)


def deviates(deviation: float) -> bool:
    """Whether what a step assigns to a variable is not the same on all replicas.

    Args:
        deviation: Its standard deviation over the replicas, of the root mean square.
    """
    # What is NaN on all of them says nothing.
    return not (math.isnan(deviation) or is_rounding(deviation, tolerances.DEVIATION))
