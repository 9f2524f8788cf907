"""Describe why a deployment probably differs from one device."""

import statistics

from kerasdist.comparison.comparison import Comparison
from kerasdist.comparison.recording import Step
from kerasdist.support.text import short_list

_NEAR = 0.03  # Relative: a factor of 1.97 counts as 2.
_MOST_CHANGE = 0.05  # Relative, of a change in which only rounding differs.
_MOST_NAMES = 3
_NUM_COUNTERS = 2  # An optimizer counts its iterations and has a learning rate.


def reasons(found: Comparison, *, num_replicas: int, alike: Comparison | None = None) -> list[str]:
    """Returns the likely reasons of a difference.

    Args:
        found: A comparison that is not equal.
        num_replicas: That of the deployment.
        alike: The comparison after random draws and batch statistics were made alike, if there was
            one.
    """
    if other := _missing_steps(found) or _data(found):
        return [other]
    natural = [reason for reason in (_draws(found), _statistics(found)) if reason]
    if alike and alike.is_equal:
        return natural
    if alike:
        return [*natural, *_reasons_in_the_program(alike, num_replicas)]
    return _reasons_in_the_program(found, num_replicas)


def may_be_natural(found: Comparison) -> bool:
    """Whether random draws or statistics of each replica may be the reason."""
    if found.is_equal or _missing_steps(found) or _data(found):
        return False
    return bool(_draws(found) or _statistics(found))


def _missing_steps(found: Comparison) -> str:
    if found.differences:
        return ""
    return (
        f"The number of steps: {found.num_steps[0]} on one device, {found.num_steps[1]} on the "
        "deployment. The data or the program ends earlier there."
    )


def _data(found: Comparison) -> str:
    first = found.other_data_from
    if first is None or first > _step_of(found).last:
        return ""
    return (
        f"The order of the data: step {first} read different examples. What chooses them is "
        "random, or depends on the number of workers or replicas. Give a seed to what shuffles or "
        "augments, and read the same files in the same order."
    )


def _reasons_in_the_program(found: Comparison, num_replicas: int) -> list[str]:
    return [
        _missing_steps(found)
        or _data(found)
        or _factor(found, num_replicas)
        or _logs(found, num_replicas)
        or _rounding(found)
        or _computation(found)
    ]


def _factor(found: Comparison, num_replicas: int) -> str:
    # Adam's velocities are squares, and any number is a multiple of any other.
    updates = [
        each
        for each in found.differences
        if each.kind != "log" and "velocity" not in each.name and each.num_elements > 1
    ]
    factors = [each.factor for each in updates if each.factor]
    if not factors or 2 * len(factors) < len(updates):
        return ""
    factor = statistics.median(factors)
    if _is_near(factor, 1) or not all(_is_near(each, factor) for each in factors):
        return ""
    text = f"the change in this step is {factor:.3g} times that of one device"
    if _is_near(factor, num_replicas) or _is_near(factor, 1 / num_replicas):
        return (
            f"A sum over examples: {text}, and there are {num_replicas} replicas. A loss that the "
            "program reduces itself is computed from the examples of each replica and counts as a "
            "mean over them; a sum, or a mean with another divisor, is not the same. Use "
            "`kerasdist.global_sum` or `kerasdist.global_mean`, or a Keras loss with its default "
            "reduction."
        )
    return (
        f"A mean over other examples: {text}. The program divides by a number that is not the "
        "number of examples in the global batch."
    )


def _draws(found: Comparison) -> str:
    if not _step_of(found).draws:
        return ""
    places = short_list(_step_of(found).draws, _MOST_NAMES)
    return (
        f"Random numbers, drawn in {places}: each replica draws for its own examples, so that "
        "training differs from one device as two runs with different seeds do."
    )


def _statistics(found: Comparison) -> str:
    if not _step_of(found).unsynchronized:
        return ""
    layers = short_list(_step_of(found).unsynchronized, _MOST_NAMES)
    return (
        f"Batch statistics of {layers}: each replica normalizes with "
        "those of its own examples. BatchNormalization(synchronized=True) takes those of the "
        "global batch."
    )


def _logs(found: Comparison, num_replicas: int) -> str:
    if any(each.kind != "log" for each in found.differences):
        return ""
    factors = [each.factor for each in found.differences if each.factor]
    text = "Logs only: all variables are equal"
    if factors and _is_near(factors[0], num_replicas):
        return (
            f"{text}, and the log is {num_replicas} times that of one device. It is a sum over "
            "examples, or a mean with another divisor."
        )
    return (
        f"{text}. A metric, or what the train_step returns, is not a mean over the examples of "
        "the global batch."
    )


def _rounding(found: Comparison) -> str:
    updates = [each for each in found.differences if each.kind != "log"]
    if all(each.relative_change < _MOST_CHANGE for each in updates):
        return (
            "Rounding: the replicas add the same numbers in another order. Such differences grow "
            "from step to step, and where ReLU, max pooling or an optimizer such as Adam turns the "
            "smallest difference into a large one. In float64 "
            "(`keras.config.set_floatx('float64')`) they vanish, or are below 1e-7 where the "
            "replicas' shares of the batch, which are float32, differ."
        )
    has_slots = len(_step_of(found).slots) > _NUM_COUNTERS
    if has_slots and all(each.kind == "weight" for each in updates):
        return (
            "Rounding, amplified by the optimizer: the gradients are equal, and where they are "
            "almost 0 (as for a bias before a normalization) an optimizer such as Adam divides "
            "them by their own size."
        )
    return ""


def _computation(found: Comparison) -> str:
    where = (
        "train_step of its own" if _step_of(found).has_own_step else "layer, loss or regularizer"
    )
    return (
        f"The computation: probably a {where} relates the examples of a batch to each other or to "
        "their number, and here sees those of one replica."
    )


def _step_of(found: Comparison) -> Step:
    assert found.step is not None  # There are differences.
    return found.step


def _is_near(value: float, other: float) -> bool:
    return abs(value / other - 1) < _NEAR
