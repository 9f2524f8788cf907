"""The optimizers that steps have called: a train_step may take one from anywhere."""

from typing import Any

import keras

from kerasdist.private import keras_optimizers
from kerasdist.support import memory


def note(optimizer: Any) -> None:
    """Notes that a step calls an optimizer, when it is traced."""
    memory.of_part(optimizer).is_called = True


def of(model: keras.Model) -> list:
    """Returns those that train variables of a model."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [
        optimizer
        for optimizer in memory.parts_with(lambda notes: notes.is_called)
        if optimizer.built
        and any(id(each) in trained for each in keras_optimizers.variables_trained_by(optimizer))
    ]
