"""VGG as slim has it, with 11, 16 and 19 layers: blocks of 3 x 3 convolutions, and a large head."""

import functools

import keras
from keras import layers

from . import convolutional_head
from .weight_decay import slim_l2

_CHANNELS = (64, 128, 256, 512, 512)


def _build(
    *,
    depths: tuple[int, ...],
    num_classes: int,
    image_size: int,
    channels: int,
    weight_decay: float,
) -> keras.Model:
    """Returns VGG with so many convolutions in each block; every kernel is regularized."""
    images = x = keras.Input((image_size, image_size, channels), name="images")
    for block, (depth, filters) in enumerate(zip(depths, _CHANNELS, strict=True), start=1):
        for number in range(1, depth + 1):
            x = layers.Conv2D(
                filters,
                3,
                padding="same",
                activation="relu",
                kernel_regularizer=slim_l2(weight_decay),
                name=f"conv{block}.conv{block}_{number}",
            )(x)
        x = layers.MaxPooling2D(2, name=f"pool{block}")(x)
    logits = convolutional_head.add(
        x,
        sizes=(4096, 4096),
        window=7,
        num_classes=num_classes,
        weight_decay=weight_decay,
        kernel=keras.initializers.GlorotUniform,
        bias=keras.initializers.Zeros,
    )
    return keras.Model(images, logits)


vgg_a = functools.partial(_build, depths=(1, 1, 2, 2, 2))
vgg_16 = functools.partial(_build, depths=(2, 2, 3, 3, 3))
vgg_19 = functools.partial(_build, depths=(2, 2, 4, 4, 4))
