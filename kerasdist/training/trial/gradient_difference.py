"""Where the gradient over the replicas is not that of the whole batch, and what to do about it.

Both gradients come from a rehearsal of a few examples: see `rehearsal`.
"""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

# Of the norm of all gradients of an update: what is smaller may be rounding, as that of a bias
# before a layer that subtracts the mean.
_NEGLIGIBLE = 1e-2
# Of the norm: the shares are not equal, so that a sum is not a mean times a number to the last bit.
_TOLERANCE_OF_SUM = 0.2
# Stands for the path of a variable where a program adds up gradients by itself.
OWN_SUM = "what an `all_reduce` returns"
# How many times what an input that is different in its last bit makes is rounding, too.
ROUNDING = 4.0
_DIVISION = (
    "The program asks for the number of replicas, as `tf.nn.scale_regularization_loss` does, and "
    "`tf.nn.compute_average_loss` without `global_batch_size`. Leave out the division of the loss "
    "by it: the mean over the replicas is taken here."
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GradientDifference:
    """Where the gradient over the replicas is not that of the whole batch.

    Attributes:
        variable: Path of the variable whose gradient differs most; "predictions" for those, and
            `OWN_SUM` for a sum of the program's own.
        difference: Norm of the difference over the norm of the larger gradient, of that variable;
            not finite where only one of them is.
        is_sum: Whether all gradients would have to be multiplied by the number of replicas, about.
        asks_for_number: Whether the program asks how many replicas there are.
    """

    variable: str
    difference: float
    is_sum: bool
    asks_for_number: bool = False


def find(whole, shared, tolerance: float, num_replicas: int) -> GradientDifference | None:
    """Returns where the gradient over the replicas is not that of the whole batch, or None.

    Args:
        whole: `Rehearsed` with the whole batch, and with one that differs from it by rounding.
        shared: `Rehearsed` with the batch divided over the replicas.
        tolerance: How much of the norm of a gradient may be rounding.
        num_replicas: In all.
    """
    (expected, rounded), (divided, *_) = whole.updates, shared.updates
    found = _compare(expected, divided, tolerance, num_replicas)
    if found is None:
        return None
    # A deep net with few examples multiplies what rounding does to its inputs.
    rounding = _compare(expected, rounded, 0.0, num_replicas)
    if rounding and found.difference <= ROUNDING * rounding.difference:
        return None
    return dataclasses.replace(found, asks_for_number=whole.asks_for_number)


def of_variable(whole, shared, variable: str) -> np.ndarray:
    """Returns by how much the gradients of a variable differ: float64, of all updates in a row.

    Args:
        whole: See `find`.
        shared: See `find`.
        variable: Its path, as in a `GradientDifference`.
    """
    updates = _updates(whole.updates[0], shared.updates[0])
    differences = [
        np.ravel(whole - shared)
        for path, whole, shared in itertools.chain(*updates)
        if path == variable
    ]
    return np.concatenate([np.zeros(0), *differences])


def describe(found: GradientDifference, num_replicas: int) -> str:
    """Returns a difference in words, with the remedy.

    Args:
        found: Of `find`.
        num_replicas: In all.
    """
    text = (
        f"The gradient over {num_replicas} replicas is not the one that the whole batch gives on "
        f"one device: it differs by {_percent(found.difference)} (of {_name(found)}). "
        "Each replica computes the loss of its own examples, which counts as a mean over them. "
    )
    if not math.isfinite(found.difference):
        text += (
            "Only one of the two is finite: a mean over a part of the examples, such as those of a "
            "mask, may divide by 0 on a replica that has none of them. "
        )
    return text + _remedy(found, num_replicas)


def _name(found: GradientDifference) -> str:
    return found.variable if found.variable == OWN_SUM else f"'{found.variable}'"


def _remedy(found: GradientDifference, num_replicas: int) -> str:
    if found.variable == OWN_SUM:
        return (
            "The gradient of `tape.gradient` is that of the whole batch, on each of "
            f"{num_replicas} replicas. Leave out the `all_reduce` of it."
        )
    if found.is_sum and found.asks_for_number:
        return f"On one device it is about {num_replicas} times as large. {_DIVISION}"
    if found.is_sum:
        return (
            f"On one device it is about {num_replicas} times as large, so the loss seems to be a "
            "sum over the examples. Sum with `kerasdist.global_sum(values)`, or divide by the "
            "number of examples of this replica, as a mean does."
        )
    return (f"{_DIVISION} " if found.asks_for_number else "") + (
        "A mean with a divisor of its own, such as the sum of a mask, is "
        "`kerasdist.global_mean(values, weights=mask)`, and a sum `kerasdist.global_sum(values)`. "
        "A loss that compares examples with each other compares those of one replica only, unless "
        "it is given to `compile` and computed by `compute_loss`. A gradient that is taken inside "
        "of a condition, a loop or a `tf.function` with an `input_signature`, where replicas "
        "cannot meet, is of one replica until the optimizer has it: take it in the train_step "
        "itself, or clip with `kerasdist.callbacks.GradientClipping`."
    )


def _compare(
    expected: list, found: list, tolerance: float, num_replicas: int
) -> GradientDifference | None:
    updates = _updates(expected, found)
    differences = [each for pairs in updates for each in _differences_of(pairs)]
    if not differences:  # On one device they are not finite either.
        return None
    own_sums = [each for each in differences if each[1] == OWN_SUM and each[0] > tolerance]
    # Where it is one of them, it is the cause of what differs after it.
    difference, worst = max(
        own_sums or differences, key=lambda each: np.nan_to_num(each[0], nan=np.inf)
    )
    if difference <= tolerance:
        return None
    pairs = list(itertools.chain(*updates))
    apart = math.hypot(*(_norm(whole - num_replicas * shared) for _, whole, shared in pairs))
    return GradientDifference(
        variable=worst,
        difference=float(difference),
        is_sum=math.isfinite(difference)
        and apart <= _TOLERANCE_OF_SUM * math.hypot(*(_norm(whole) for _, whole, _ in pairs)),
    )


def _differences_of(pairs: list[tuple]) -> list[tuple]:
    """Returns how much the gradients of one update differ, of their norms, with their names."""
    norms = [(_norm(whole), _norm(shared)) for _, whole, shared in pairs]
    norm = max(
        (math.hypot(*filter(math.isfinite, each)) for each in zip(*norms, strict=True)), default=0.0
    )
    smallest = max(_NEGLIGIBLE * norm, np.finfo("float32").tiny)
    return [
        (_norm(whole - shared) / max(*both, smallest), path)
        for (path, whole, shared), both in zip(pairs, norms, strict=True)
        if np.isfinite(both).any()
    ]


def _updates(expected: list, found: list) -> list[list[tuple]]:
    """Returns for each update, and for the program's own sums, names and both gradients."""
    updates, sums = (
        [
            _pairs(*each)
            for each in zip(_of_kind(expected, is_sum), _of_kind(found, is_sum), strict=False)
        ]
        for is_sum in (False, True)
    )
    return [*updates, list(itertools.chain(*sums))]


def _of_kind(updates: list, is_sum: bool) -> list:
    return [each for each in updates if (each[0] == [OWN_SUM]) is is_sum]


def _pairs(whole_update, shared_update) -> list[tuple]:
    (paths, wholes), (_, shareds) = whole_update, shared_update
    return [
        (path, _as_array(whole), _as_array(shared))
        for path, whole, shared in zip(paths, wholes, shareds, strict=True)
        if whole is not None and shared is not None
    ]


def _as_array(gradient) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(gradient), "float64")


def _norm(array: np.ndarray) -> float:
    return math.sqrt(np.vdot(array, array))


def _percent(fraction: float) -> str:
    if not math.isfinite(fraction):
        return "NaN"
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{100 * fraction:.2g}%"
