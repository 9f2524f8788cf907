"""CifarNet as slim has it: two convolutions with response normalization, three dense layers."""

import keras
from keras import layers

from .local_response_normalization import LocalResponseNormalization
from .weight_decay import slim_l2


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns CifarNet; only the kernels of fc3 and fc4 are regularized, as in slim."""
    images = keras.Input((image_size, image_size, channels), name="images")
    x = _conv("conv1")(images)
    x = layers.MaxPooling2D(2, name="pool1")(x)
    x = LocalResponseNormalization(name="norm1")(x)
    x = _conv("conv2")(x)
    x = LocalResponseNormalization(name="norm2")(x)
    x = layers.MaxPooling2D(2, name="pool2")(x)
    x = layers.Flatten(name="flatten")(x)
    x = _dense(384, "fc3", weight_decay)(x)
    x = layers.Dropout(0.5, name="dropout3")(x)
    x = _dense(192, "fc4", weight_decay)(x)
    logits = layers.Dense(
        num_classes, kernel_initializer=_truncated_normal(1 / 192), name="logits"
    )(x)
    return keras.Model(images, logits)


def _conv(name: str) -> layers.Layer:
    return layers.Conv2D(
        64,
        5,
        padding="same",
        activation="relu",
        kernel_initializer=_truncated_normal(0.05),
        name=name,
    )


def _dense(units: int, name: str, weight_decay: float) -> layers.Layer:
    return layers.Dense(
        units,
        activation="relu",
        kernel_initializer=_truncated_normal(0.04),
        bias_initializer=keras.initializers.Constant(0.1),
        kernel_regularizer=slim_l2(weight_decay),
        name=name,
    )


def _truncated_normal(stddev: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=stddev)
