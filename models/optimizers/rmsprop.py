"""RMSProp, as TensorFlow 1 makes its steps."""

import keras


@keras.saving.register_keras_serializable("models")
class RMSProp(keras.optimizers.RMSprop):
    """Starts its mean of squares at one; that of Keras' starts at zero.

    With an epsilon of 1, as in the legacy trainers, Keras' first step is a third larger.

    Args:
        The same as of `keras.optimizers.RMSprop`.

    Example:
        model.compile(RMSProp(0.045, rho=0.9, momentum=0.9, epsilon=1.0), "mse")

    Source: tf.compat.v1.train.RMSPropOptimizer.
    """

    def add_variable_from_reference(
        self,
        reference_variable: keras.Variable,
        name: str | None = None,
        initializer: str = "zeros",
    ):
        """Makes a variable of the optimizer that is like a weight."""
        initializer = "ones" if name == "velocity" else initializer
        return super().add_variable_from_reference(reference_variable, name, initializer)
