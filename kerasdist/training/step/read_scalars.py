"""Knows the numbers that a step reads and a program sets: they show and hide parts of the step.

A term of a loss whose weight is 0 in the first step has no gradient there, and so has one of weight
1 - w where w is 1: a check of that step says nothing about it. Later a callback sets the weight to
another value, or the program does between two calls of `fit`. A vector may hold several weights.

    scalars.note_trace()       # Where a step is traced.
    scalars.note_checked()     # The step has been checked, with their values of now.
    scalars.are_checked()      # Do the values of now show no more than a check has seen?
"""

from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts, keras_optimizers, variable_adapter
from kerasdist.training.hooks import called_optimizers, step_variables
from kerasdist.training.replica import custom_attributes, graph_facts

# Values of a whole number, such as a phase of the training. One that counts epochs has more.
_MOST_VALUES = 4
# Numbers in a vector that holds a weight for each term of a loss. Parts of the model have more.
_MOST_ELEMENTS = 32


class ReadScalars:
    """Knows with which values of its scalars, and elements of short vectors, a step was checked.

    Of a float, 0 and 1 are told from all other values; of an integer or a bool, its first few
    values from each other. What any other value shows, all of these show.

    Args:
        model: The model of the step.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._graph: Any = None  # That of the last trace.
        self._variables: list | None = None
        # By the ids of the variables and the elements; None for any other value.
        self._checked: list[dict[tuple[int, int], float | None]] = []

    def note_trace(self) -> None:
        """Notes the graph in which a step has been traced; nothing in an eager step."""
        if self._variables is None and not tf.executing_eagerly():
            self._graph = tf.compat.v1.get_default_graph()

    def note_checked(self) -> None:
        """Notes that the step was checked with the values of now; it has run, and sets none."""
        self._checked.append(self._values())

    def are_checked(self) -> bool:
        """Whether the step was checked with these values, or with such as hide no more."""
        now = self._values()
        return any(_show_all(checked, now) for checked in self._checked)

    def _values(self) -> dict[tuple[int, int], float | None]:
        if self._variables is None:
            self._variables, self._graph = self._found(), None
        values = {}
        for variable in self._variables:
            numbers = tf.convert_to_tensor(variable).numpy().reshape(-1).tolist()
            keys = [(id(variable), position) for position in range(len(numbers))]
            as_told = self._float if variable.dtype.is_floating else self._whole
            values |= {key: as_told(key, number) for key, number in zip(keys, numbers, strict=True)}
        return values

    def _found(self) -> list:
        """Returns the variables; an eager step, which has no graph, may read all that there are."""
        if self._graph is None:
            read = [variable for _, variable in custom_attributes.states_of(self._model)]
        else:
            read = graph_facts.only_read_in(self._graph)
        known = self._set_by_training()
        return [
            each
            for each in read
            if _are_few_numbers(each) and id(each) not in known and not step_variables.is_one(each)
        ]

    def _set_by_training(self) -> set[int]:
        """Returns ids of TensorFlow's variables: weights, learning rates, counts and metrics."""
        model = self._model
        owners = [
            *keras_optimizers.optimizers_of(model),
            *keras_optimizers.optimizers_inside(model),
            *called_optimizers.of(model),
            *custom_parts.metrics_of(model),
        ]
        variables = [
            *model.trainable_variables,
            *(each for own in owners for each in own.variables),
        ]
        local = model.distribute_strategy.experimental_local_results
        values = map(variable_adapter.value_of, variables)
        return {id(part) for value in values for part in (value, *local(value))}

    def _float(self, _, number: float) -> float | None:
        return number if number in (0, 1) else None

    def _whole(self, key: tuple[int, int], number: int) -> int | None:
        known = {checked[key] for checked in self._checked}
        return number if number in known or len(known) < _MOST_VALUES else None


def _show_all(checked: dict, now: dict) -> bool:
    """Whether what was checked with some values shows all that there is with others."""
    return all(checked[key] in (None, value) for key, value in now.items())


def _are_few_numbers(variable: Any) -> bool:
    dtype = variable.dtype
    are_numbers = dtype.is_floating or dtype.is_integer or dtype.is_bool
    size = variable.shape.num_elements()
    return are_numbers and size is not None and size <= _MOST_ELEMENTS
