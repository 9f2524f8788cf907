"""Gradient descent with momentum, as TensorFlow 1 makes its steps."""

from typing import Any

import keras

from ..learning_rates import Schedule


@keras.saving.register_keras_serializable("models")
class Momentum(keras.optimizers.Optimizer):
    """Accumulates gradients, while Keras' SGD accumulates steps.

    The sum of gradients becomes `momentum * sum + gradient`, and the weight falls by
    `learning_rate * sum`. With a constant learning rate both make the same steps. When it falls,
    this one slows down at once, and Keras' only after some steps.

    Args:
        learning_rate: Number or schedule.
        momentum: How much of the sum is kept in each step, from 0 to less than 1.
        **arguments: Further arguments of `keras.optimizers.Optimizer`.

    Example:
        model.compile(Momentum(0.01, momentum=0.9), "mse")

    Source: tf.compat.v1.train.MomentumOptimizer.
    """

    def __init__(
        self, learning_rate: float | Schedule = 0.01, *, momentum: float = 0.9, **arguments: Any
    ):
        super().__init__(learning_rate, **arguments)
        self.momentum = momentum

    def build(self, variables: list[keras.Variable]):
        if self.built:
            return
        super().build(variables)
        self._sums = [
            self.add_variable_from_reference(variable, name="momentum") for variable in variables
        ]

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any):
        """Makes the step of one variable."""
        rate = keras.ops.cast(learning_rate, variable.dtype)
        gradient = keras.ops.cast(gradient, variable.dtype)
        kept = keras.ops.cast(self.momentum, variable.dtype)
        total = self._sums[self._get_variable_index(variable)]
        self.assign(total, keras.ops.add(keras.ops.multiply(total, kept), gradient))
        self.assign_sub(variable, keras.ops.multiply(total, rate))

    def get_config(self):
        return {**super().get_config(), "momentum": self.momentum}
