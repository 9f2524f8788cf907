"""The optimizers that steps have called: a train_step may take one from anywhere."""

import weakref
from typing import Any

from kerasdist.private import keras_optimizers

_called: Any = weakref.WeakSet()


def note(optimizer) -> None:
    """Notes that a step calls an optimizer, when it is traced."""
    _called.add(optimizer)


def of(model) -> list:
    """Returns those that train variables of a model."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [
        optimizer
        for optimizer in list(_called)
        if optimizer.built
        and any(id(each) in trained for each in keras_optimizers.variables_trained_by(optimizer))
    ]
