"""Describe how a step differs from one device, with the remedy."""

import math

import keras
import numpy as np

from kerasdist.private import custom_parts
from kerasdist.support.text import short_list
from kerasdist.training.step.step_logs import describe_rows, name_of
from kerasdist.training.trial.compare import GradientDifference, LogDifferences
from kerasdist.training.trial.outcome import CUSTOM_SUM

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


def of_logs(found: LogDifferences, num_replicas: int, *, is_training: bool = True) -> list[str]:
    """Returns in words what a step returns and counts that is not the same.

    Args:
        found: Of `compare.logs`.
        num_replicas: In all.
        is_training: Whether the step is the model's train_step.
    """
    texts = [describe_rows(path, shapes) for path, shapes in found.shapes]
    if found.numbers:
        numbers = [(name_of(path), whole, mean) for path, whole, mean in found.numbers]
        texts.append((_of_training if is_training else _of_evaluation)(numbers, num_replicas))
    if found.metrics:
        texts.append(_of_metrics(found.metrics, num_replicas))
    return texts


def _of_training(differing: list[tuple], num_replicas: int) -> str:
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


def _of_evaluation(differing: list[tuple], num_replicas: int) -> str:
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


def _of_metrics(names: list[str], num_replicas: int) -> str:
    return (
        f"What the metric {short_list(map(repr, names), 3)} counts in a step is not what it counts "
        "on one device: it is computed from several examples of the batch, or once for a batch, "
        f"and each of {num_replicas} replicas has examples of its own. Update a metric of your "
        "own, which sees all examples, with the outputs of the model, and compute it there."
    )


def of_attributes(names: list[str], num_replicas: int) -> str:
    """Returns in words that each replica counts in Python."""
    return (
        f"With `run_eagerly=True`, each of {num_replicas} replicas changes {short_list(names, 3)} "
        "for itself, and with its part of a batch; one device does so once for the whole batch. "
        "Keep numbers in weights, as `add_weight` makes them, or count with "
        "`self.optimizer.iterations`."
    )


def of_weights(paths: list[str], num_replicas: int) -> str:
    """Returns in words that weights are not the same on all replicas."""
    return (
        f"What a step assigns to the trained weight {_first_of(paths)} is not the same on the "
        f"{num_replicas} replicas: each computes it from its own examples, so that they train "
        "different weights. Update them with `optimizer.apply(gradients, variables)`, or assign "
        "what all replicas share: a gradient of `tape.gradient`, which is that of the whole batch, "
        "or `kerasdist.global_mean(values)`."
    )


def of_states(names: list[str], num_replicas: int) -> str:
    """Returns in words that states are not the same on all replicas."""
    return (
        f"What a step assigns to the state {_first_of(names)} is not the same on the "
        f"{num_replicas} replicas: each computes it from its own examples, and goes on with it, "
        "where one device computes it from the whole batch. The model that is saved has that of "
        "one replica. Assign what is of the whole batch: `kerasdist.global_mean(values)` and "
        "`kerasdist.global_sum(values)` of its examples, or, of other numbers, "
        '`tf.distribute.get_replica_context().all_reduce("SUM", numbers)`; for a queue of examples '
        "`all_gather(examples, axis=0)` of the same context."
    )


def _first_of(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def of_losses(model: keras.Model) -> str:
    """Returns in words that the user's compiled losses see all examples from now on."""
    names = ", ".join(f"'{each}'" for each in custom_parts.custom_loss_names(model))
    return (
        f"Loss: {names} of the model '{model.name}' is no mean over the examples, so each replica "
        "computes it from the whole batch, which a check has found to give what one device gives. "
        "In each step the replicas send each other labels, predictions and sample weights. A sum, "
        "or a mean with a divisor of its own, costs less as `kerasdist.global_sum(values)` or "
        "`kerasdist.global_mean(values, weights=mask)`."
    )


def of_output(path: tuple, whole: np.ndarray, joined: np.ndarray | None) -> str:
    """Returns in words what `compare.outputs` has found."""
    name = "an output" if len(path) == 1 else f"output {list(path[:-1])}"
    if joined is None or joined.shape != whole.shape:
        shape = None if joined is None else joined.shape
        return f"of a few examples {name} has the shape {shape}, on one device {whole.shape}"
    return f"the numbers of {name} are others"
