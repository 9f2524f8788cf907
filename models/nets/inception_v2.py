"""Inception v2 as slim has it: two 3x3 convolutions for each 5x5 one, and a separable first one."""

import keras
from keras import layers

from .branches import AveragePool, Conv, MaxPool, chain, mixed
from .style import Style

# Filters: of the 1x1 branch, of the 3x3 one, of the one with two 3x3, and behind the pool.
_BLOCKS = {
    "Mixed_3b": (64, (64, 64), (64, 96), 32),
    "Mixed_3c": (64, (64, 96), (64, 96), 64),
    "Mixed_4a": ((128, 160), (64, 96)),
    "Mixed_4b": (224, (64, 96), (96, 128), 128),
    "Mixed_4c": (192, (96, 128), (96, 128), 128),
    "Mixed_4d": (160, (128, 160), (128, 160), 96),
    "Mixed_4e": (96, (128, 192), (160, 192), 96),
    "Mixed_5a": ((128, 192), (192, 256)),
    "Mixed_5b": (352, (192, 320), (160, 224), 128),
    "Mixed_5c": (352, (192, 320), (192, 224), 128),
}


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns Inception v2; every kernel but those of the first convolution is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.9997)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = _first(images, style)
    stem = [
        MaxPool("MaxPool_2a_3x3", padding="same"),
        Conv("Conv2d_2b_1x1", 64, stddev=0.1),
        Conv("Conv2d_2c_3x3", 192),
        MaxPool("MaxPool_3a_3x3", padding="same"),
    ]
    x = chain(x, stem, style)
    for name, filters in _BLOCKS.items():
        x = mixed(x, name, style, _smaller(*filters) if len(filters) == 2 else _same(name, filters))
    logits = style.logits(x, "Logits.Conv2d_1c_1x1", num_classes, keep=0.8)
    return keras.Model(images, logits)


def _first(images: keras.KerasTensor, style: Style):
    """Adds the separable convolution: slim's has a bias, and no batch normalization."""
    name = "Conv2d_1a_7x7"
    x = layers.SeparableConv2D(
        64,
        7,
        strides=2,
        padding="same",
        depth_multiplier=8,
        depthwise_initializer=style.initializer(1.0),
        pointwise_initializer=style.initializer(1.0),
        name=name,
    )(images)
    return style.activate(x, name)


def _before(filters: int):
    return Conv("Conv2d_0a_1x1", filters, stddev=0.09)


def _smaller(a: tuple[int, int], b: tuple[int, int]):
    """Returns the branches of a block that halves height and width."""
    return [
        [_before(a[0]), Conv("Conv2d_1a_3x3", a[1], strides=2)],
        [_before(b[0]), Conv("Conv2d_0b_3x3", b[1]), Conv("Conv2d_1a_3x3", b[1], strides=2)],
        [MaxPool("MaxPool_1a_3x3", padding="same")],
    ]


def _same(name: str, filters: tuple):
    """Returns the branches of a block that keeps height and width."""
    one, a, b, behind_pool = filters
    pool = (
        MaxPool("MaxPool_0a_3x3", strides=1, padding="same")
        if name == "Mixed_5c"
        else AveragePool()
    )
    return [
        [Conv("Conv2d_0a_1x1", one)],
        [_before(a[0]), Conv("Conv2d_0b_3x3", a[1])],
        [_before(b[0]), Conv("Conv2d_0b_3x3", b[1]), Conv("Conv2d_0c_3x3", b[1])],
        [pool, Conv("Conv2d_0b_1x1", behind_pool, stddev=0.1)],
    ]
