"""A training whose numbers are no longer finite: it ends, and its weights are not kept.

The first gradient that is not finite ends the run before the weights change. TensorFlow says so as
the error of an operation, which is told here from the errors of others.
"""

import math

import keras
import tensorflow as tf

from kerasdist import callbacks

_MARK = "The gradient of this step is not finite."


class DivergedError(Exception):
    """Training cannot go on; the message names the step."""

    def __init__(self, what: str, step: int):
        super().__init__(
            f"{what} of step {step} is not finite: training has diverged, and no model is saved. "
            "Lower --learning_rate, or look for examples that are not numbers."
        )


class FiniteGradients(callbacks.UpdateCallback):
    """Lets a step fail before it changes the weights where its gradient is not finite."""

    def update(self, gradients_and_variables, apply):
        present = [gradient for gradient, _ in gradients_and_variables if gradient is not None]
        norm = tf.linalg.global_norm([tf.cast(each, tf.float32) for each in present])
        with tf.control_dependencies([tf.debugging.check_numerics(norm, _MARK)]):
            apply(gradients_and_variables)

    def describe(self):
        return "stop where the gradient is not finite"


class FiniteLoss(keras.callbacks.Callback):
    """Ends training after an epoch whose mean loss is not finite; its gradients may have been.

    Raises:
        DivergedError: That is so.
    """

    def on_epoch_end(self, epoch, logs=None):
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise DivergedError("The mean loss until the end", _step_of(self.model))


def as_diverged(error: Exception, model: keras.Model) -> DivergedError | None:
    """Return what an error of `fit` says of the gradient; None where it is another error."""
    if isinstance(error, tf.errors.InvalidArgumentError) and _MARK in str(error):
        return DivergedError("The gradient", _step_of(model) + 1)
    return None


def _step_of(model: keras.Model) -> int:
    return int(model.optimizer.iterations.numpy())
