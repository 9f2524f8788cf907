"""What is said of a step that does not give what one device gives, with the remedy."""

import math

from kerasdist.training.trial.compare import CUSTOM_SUM, GradientDifference

_DIVISION = (
    "The program asks for the number of replicas, as `tf.nn.scale_regularization_loss` does, and "
    "`tf.nn.compute_average_loss` without `global_batch_size`. Leave out the division of the loss "
    "by it: the mean over the replicas is taken here."
)


def of_gradient(found: GradientDifference, num_replicas: int, *, asks_for_number: bool) -> str:
    """Returns a difference in words, with the remedy.

    Args:
        found: Of `compare.gradients`.
        num_replicas: In all.
        asks_for_number: Whether the program asks how many replicas there are.
    """
    text = (
        f"The gradient over {num_replicas} replicas is not the one that the whole batch gives on "
        f"one device: it differs by {_percent(found.size)} (of {_name(found)}). "
        "Each replica computes the loss of its own examples, which counts as a mean over them. "
    )
    if not math.isfinite(found.size):
        text += (
            "Only one of the two is finite: a mean over a part of the examples, such as those of a "
            "mask, may divide by 0 on a replica that has none of them. "
        )
    return text + _remedy(found, num_replicas, asks_for_number)


def _name(found: GradientDifference) -> str:
    return found.variable if found.variable == CUSTOM_SUM else f"'{found.variable}'"


def _remedy(found: GradientDifference, num_replicas: int, asks_for_number: bool) -> str:
    if found.variable == CUSTOM_SUM:
        return (
            "The gradient of `tape.gradient` is that of the whole batch, on each of "
            f"{num_replicas} replicas. Leave out the `all_reduce` of it."
        )
    if found.is_sum and asks_for_number:
        return f"On one device it is about {num_replicas} times as large. {_DIVISION}"
    if found.is_sum:
        return (
            f"On one device it is about {num_replicas} times as large, so the loss seems to be a "
            "sum over the examples. Sum with `kerasdist.global_sum(values)`, or divide by the "
            "number of examples of this replica, as a mean does."
        )
    return (f"{_DIVISION} " if asks_for_number else "") + (
        "A mean with a divisor of its own, such as the sum of a mask, is "
        "`kerasdist.global_mean(values, weights=mask)`, and a sum `kerasdist.global_sum(values)`. "
        "A loss that compares examples with each other compares those of one replica only, unless "
        "it is given to `compile` and computed by `compute_loss`. A gradient that is taken inside "
        "of a condition, a loop or a `tf.function` with an `input_signature`, where replicas "
        "cannot meet, is of one replica until the optimizer has it: take it in the train_step "
        "itself, or clip with `kerasdist.callbacks.GradientClipping`."
    )


def _percent(fraction: float) -> str:
    if not math.isfinite(fraction):
        return "NaN"
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{100 * fraction:.2g}%"
