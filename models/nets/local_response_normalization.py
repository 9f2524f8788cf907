"""Local response normalization, which Keras does not have and CifarNet needs."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="kerasdist_models")
class LocalResponseNormalization(keras.layers.Layer):
    """Divides each value by a power of the squares of its neighbors across channels.

    The defaults are CifarNet's. A saved model with this layer loads after `import models.nets`.

    Args:
        depth_radius: How many channels to either side count as neighbors.
        bias: Added to the weighted sum of squares.
        alpha: The weight of the sum of squares.
        beta: The power.
        **kwargs: Of keras.layers.Layer.
    """

    def __init__(
        self,
        depth_radius: int = 4,
        *,
        bias: float = 1.0,
        alpha: float = 0.001 / 9,
        beta: float = 0.75,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.depth_radius = depth_radius
        self.bias = bias
        self.alpha = alpha
        self.beta = beta

    def call(self, inputs: tf.Tensor):
        """Returns `inputs` normalized: float [batch, height, width, channels]."""
        return tf.nn.local_response_normalization(
            inputs, self.depth_radius, bias=self.bias, alpha=self.alpha, beta=self.beta
        )

    def compute_output_shape(self, input_shape: tuple):
        """Returns `input_shape`: normalization keeps it."""
        return input_shape

    def get_config(self):
        """Returns what __init__ needs to make this layer again."""
        return super().get_config() | {
            "depth_radius": self.depth_radius,
            "bias": self.bias,
            "alpha": self.alpha,
            "beta": self.beta,
        }
