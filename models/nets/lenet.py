"""LeNet as slim has it: two convolutions, two dense layers, for small gray images."""

import keras
from keras import layers

from .weight_decay import slim_l2


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns LeNet; every kernel is regularized."""

    def kernel():
        # A call per layer: one initializer object would give every layer the same numbers.
        return {
            "kernel_initializer": keras.initializers.TruncatedNormal(stddev=0.1),
            "kernel_regularizer": slim_l2(weight_decay),
        }

    images = keras.Input((image_size, image_size, channels), name="images")
    x = layers.Conv2D(32, 5, padding="same", activation="relu", name="conv1", **kernel())(images)
    x = layers.MaxPooling2D(2, name="pool1")(x)
    x = layers.Conv2D(64, 5, padding="same", activation="relu", name="conv2", **kernel())(x)
    x = layers.MaxPooling2D(2, name="pool2")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(1024, activation="relu", name="fc3", **kernel())(x)
    x = layers.Dropout(0.5, name="dropout3")(x)
    logits = layers.Dense(num_classes, name="fc4", **kernel())(x)
    return keras.Model(images, logits)
