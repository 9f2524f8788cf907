"""The scalars that a step reads and a program sets, by which it shows and hides parts of the step.

A term of a loss whose weight is 0 in the first step has no gradient there, and so has one of weight
1 - w where w is 1: a check of that step says nothing about it. Later a callback sets the weight to
another value, or the program does between two calls of `fit`.

    scalars.note_trace()       # Where a step is traced.
    scalars.note_checked()     # The step has been checked, with their values of now.
    scalars.are_checked()      # Do the values of now show no more than a check has seen?
"""

from typing import Any

import tensorflow as tf

from kerasdist.private import keras_adapter, keras_optimizers, keras_stock, tensorflow_adapter
from kerasdist.training.step import called_optimizers, own_attributes, step_variables

# Of a whole number, such as a phase of the training. One that counts epochs has more.
_MOST_VALUES = 4


class ReadScalars:
    """Knows with which values of its scalars a step was checked.

    Of a float, 0 and 1 are told from all other values; of an integer or a bool, its first few
    values from each other. What any other value shows, all of these show.

    Args:
        model: The model of the step.
    """

    def __init__(self, model):
        self._model = model
        self._graph: Any = None  # Of the last trace.
        self._variables: list | None = None
        # By the ids of the variables; None for any other value.
        self._checked: list[dict[int, float | None]] = []

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

    def _values(self) -> dict[int, float | None]:
        if self._variables is None:
            self._variables, self._graph = self._found(), None
        return {id(each): self._value_of(each) for each in self._variables}

    def _found(self) -> list:
        """Returns the variables; an eager step, which has no graph, may read all that there are."""
        if self._graph is None:
            read = [variable for _, variable in own_attributes.states_of(self._model)]
        else:
            read = tensorflow_adapter.only_read_in(self._graph)
        known = self._set_by_training()
        return [
            each
            for each in read
            if _is_scalar(each) and id(each) not in known and not step_variables.is_one(each)
        ]

    def _set_by_training(self) -> set[int]:
        """Returns ids of TensorFlow's variables: weights, learning rates, counts and metrics."""
        model = self._model
        owners = [
            *keras_optimizers.optimizers_of(model),
            *keras_optimizers.optimizers_inside(model),
            *called_optimizers.of(model),
            *keras_stock.metrics_of(model),
        ]
        variables = [
            *model.trainable_variables,
            *(each for own in owners for each in own.variables),
        ]
        local = model.distribute_strategy.experimental_local_results
        values = map(keras_adapter.value_of, variables)
        return {id(part) for value in values for part in (value, *local(value))}

    def _value_of(self, variable) -> float | None:
        value = tf.convert_to_tensor(variable).numpy().item()
        if variable.dtype.is_floating:
            return value if value in (0, 1) else None
        known = {checked[id(variable)] for checked in self._checked}
        return value if value in known or len(known) < _MOST_VALUES else None


def _show_all(checked: dict, now: dict) -> bool:
    """Whether what was checked with some values shows all that there is with others."""
    return all(checked[key] in (None, value) for key, value in now.items())


def _is_scalar(variable) -> bool:
    dtype = variable.dtype
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return is_number and variable.shape.rank == 0
