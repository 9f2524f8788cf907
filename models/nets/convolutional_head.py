"""The last layers of slim's older nets: dense ones that are convolutions over all that is left.

Larger images than the net's own give logits at several places, whose mean is taken.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from .weight_decay import slim_l2


def add(
    x: keras.KerasTensor,
    *,
    sizes: tuple[int, int],
    window: int,
    num_classes: int,
    weight_decay: float,
    **fresh: Callable[[], Any],
) -> keras.KerasTensor:
    """Returns logits [batch, classes] of features [batch, height, width, channels].

    Args:
        x: The features; height and width are `window` at least.
        sizes: The outputs of fc6 and fc7, of which half are dropped while training.
        window: Height and width of what fc6 sees.
        num_classes: The number of logits.
        weight_decay: Of the kernels, in slim's scale.
        **fresh: Functions that make the initializers of kernels and of the biases of fc6 and fc7:
            `kernel`, `bias`.

    Raises:
        ValueError: The features are smaller than `window`.
    """
    if min(x.shape[1:3]) < window:
        raise ValueError(f"What is left of them, {x.shape[1:3]}, is less than {window} x {window}.")

    def dense(name: str, units: int, window: int, activation: str | None, bias: Any):
        return layers.Conv2D(
            units,
            window,
            activation=activation,
            kernel_initializer=fresh["kernel"](),
            bias_initializer=bias,
            kernel_regularizer=slim_l2(weight_decay),
            name=name,
        )

    x = dense("fc6", sizes[0], window, "relu", fresh["bias"]())(x)
    x = layers.Dropout(0.5, name="dropout6")(x)
    x = dense("fc7", sizes[1], 1, "relu", fresh["bias"]())(x)
    x = layers.Dropout(0.5, name="dropout7")(x)
    x = dense("fc8", num_classes, 1, None, "zeros")(x)
    x = layers.GlobalAveragePooling2D(name="squeeze")(x)
    return layers.Activation("linear", name="logits")(x)
