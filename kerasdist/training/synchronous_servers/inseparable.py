"""What an update cannot be made of the gradients of several batches for, and the way out.

Such an update is computed by one worker, from its batches joined (`choice`).
"""

from collections.abc import Iterable
from typing import Any

import keras

from kerasdist.private import keras_layers
from kerasdist.support.text import short_list
from kerasdist.training.hooks import divided_values
from kerasdist.training.replica import custom_attributes, graph_facts


class InseparableError(ValueError):
    """An update that several batches cannot share.

    Args:
        reason: Why, in words that follow a colon.
        way_out: What lets workers share it: a sentence.
    """

    def __init__(self, reason: str, way_out: str):
        super().__init__(
            "Synchronous workers over parameter servers have begun to make each update of the "
            f"gradients of several batches, and with this data they cannot: {reason}. {way_out} "
            "Or compile the model again, and one worker computes each update."
        )
        self.reason, self.way_out = reason, way_out


def check_layers(model: keras.Model) -> None:
    """Looks for layers that compute with all examples of an update.

    Raises:
        InseparableError: There are some.
    """
    layers = keras_layers.batch_normalizations_of(model)
    names = [layer.path for layer in layers if layer.synchronized and layer.trainable]
    if names:
        raise InseparableError(
            f"synchronized batch normalization ({short_list(names, 3)}) uses the statistics of "
            "all its examples",
            "With `synchronized=False` each batch has its own statistics, and all workers compute.",
        )


def check_metrics(metrics: Iterable[keras.metrics.Metric]) -> None:
    """Takes metrics to which a step does more than add.

    Raises:
        InseparableError: There are some.
    """
    names = [metric.name for metric in metrics]
    if names:
        raise InseparableError(
            f"a step does more than add to the metric {short_list(map(repr, names), 3)}",
            "Where the state of each metric is a sum over the examples, as that of "
            "`keras.metrics.Mean` is, all workers compute.",
        )


def check_assigned(model: keras.Model, graph: Any, set_by_first: Iterable[keras.Variable]) -> None:
    """Looks for weights and states of which an update does not make what one device makes.

    Args:
        model: The model.
        graph: Of the step of a worker, up to the gradients.
        set_by_first: What the step sets, and an update as the first of its batches does.

    Raises:
        InseparableError: There are some.
    """
    weights = [(weight.path, weight.value) for weight in model.trainable_weights]
    used, read = map(_handles_of, (graph.variables, graph_facts.only_read_in(graph)))
    names = [
        name
        for name, state in [*weights, *custom_attributes.states_of(model)]
        if _handles_of(divided_values.parts_of(state)) & (used - read)
    ]
    names += [variable.path for variable in set_by_first]
    if names:
        raise InseparableError(
            f"a step assigns to {short_list(map(repr, names), 3)}",
            "Where `optimizer.apply` alone changes weights, and metrics keep sums, all workers "
            "compute.",
        )


def _handles_of(variables: Iterable[Any]) -> set[int]:
    """Returns the ids of the handles of variables, which those around them share."""
    return {id(variable.handle) for variable in variables}
