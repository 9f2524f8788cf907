"""AlexNet v2 and OverFeat as slim has them: five convolutions, and a large head."""

import functools
from typing import NamedTuple

import keras
from keras import layers

from . import convolutional_head
from .weight_decay import slim_l2


class _Conv(NamedTuple):
    """A convolution, and whether the largest of each window is taken afterwards."""

    filters: int
    size: int
    stride: int
    padding: str
    is_pooled: bool


_ALEXNET = (
    _Conv(64, 11, 4, "valid", True),
    _Conv(192, 5, 1, "same", True),
    _Conv(384, 3, 1, "same", False),
    _Conv(384, 3, 1, "same", False),
    _Conv(256, 3, 1, "same", True),
)
_OVERFEAT = (
    _Conv(64, 11, 4, "valid", True),
    _Conv(256, 5, 1, "valid", True),
    _Conv(512, 3, 1, "same", False),
    _Conv(1024, 3, 1, "same", False),
    _Conv(1024, 3, 1, "same", True),
)


def _build(
    *,
    convolutions: tuple[_Conv, ...],
    pool_size: int,
    bias: float,
    window: int,
    sizes: tuple[int, int],
    num_classes: int,
    image_size: int,
    channels: int,
    weight_decay: float,
) -> keras.Model:
    """Returns the net; every kernel is regularized."""
    images = x = keras.Input((image_size, image_size, channels), name="images")
    for number, each in enumerate(convolutions, start=1):
        x = layers.Conv2D(
            each.filters,
            each.size,
            strides=each.stride,
            padding=each.padding,
            activation="relu",
            bias_initializer=keras.initializers.Constant(bias),
            kernel_regularizer=slim_l2(weight_decay),
            name=f"conv{number}",
        )(x)
        if each.is_pooled:
            x = layers.MaxPooling2D(pool_size, strides=2, name=f"pool{number}")(x)
    logits = convolutional_head.add(
        x,
        sizes=sizes,
        window=window,
        num_classes=num_classes,
        weight_decay=weight_decay,
        kernel=functools.partial(keras.initializers.TruncatedNormal, stddev=0.005),
        bias=functools.partial(keras.initializers.Constant, 0.1),
    )
    return keras.Model(images, logits)


alexnet_v2 = functools.partial(
    _build, convolutions=_ALEXNET, pool_size=3, bias=0.1, window=5, sizes=(4096, 4096)
)
overfeat = functools.partial(
    _build, convolutions=_OVERFEAT, pool_size=2, bias=0.0, window=6, sizes=(3072, 4096)
)
