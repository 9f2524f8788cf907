"""Inception v4 as slim has it, with its second classifier.

Source: https://arxiv.org/abs/1602.07261
"""

import keras
from keras import layers

from . import auxiliary
from .branches import AveragePool, Conv, Fork, MaxPool, chain, mixed
from .style import Style

_STEM = (
    Conv("Conv2d_1a_3x3", 32, strides=2, padding="valid"),
    Conv("Conv2d_2a_3x3", 32, padding="valid"),
    Conv("Conv2d_2b_3x3", 64),
)
_BLOCK_3A = [
    [MaxPool("MaxPool_0a_3x3")],
    [Conv("Conv2d_0a_3x3", 96, strides=2, padding="valid")],
]
_BLOCK_4A = [
    [Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_1a_3x3", 96, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 64),
        Conv("Conv2d_0b_1x7", 64),
        Conv("Conv2d_0c_7x1", 64),
        Conv("Conv2d_1a_3x3", 96, padding="valid"),
    ],
]
_BLOCK_5A = [
    [Conv("Conv2d_1a_3x3", 192, strides=2, padding="valid")],
    [MaxPool("MaxPool_1a_3x3")],
]
_BLOCK_5 = [
    [Conv("Conv2d_0a_1x1", 96)],
    [Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_0b_3x3", 96)],
    [Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_0b_3x3", 96), Conv("Conv2d_0c_3x3", 96)],
    [AveragePool(), Conv("Conv2d_0b_1x1", 96)],
]
_BLOCK_6A = [
    [Conv("Conv2d_1a_3x3", 384, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 192),
        Conv("Conv2d_0b_3x3", 224),
        Conv("Conv2d_1a_3x3", 256, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]
_BLOCK_6 = [
    [Conv("Conv2d_0a_1x1", 384)],
    [Conv("Conv2d_0a_1x1", 192), Conv("Conv2d_0b_1x7", 224), Conv("Conv2d_0c_7x1", 256)],
    [
        Conv("Conv2d_0a_1x1", 192),
        Conv("Conv2d_0b_7x1", 192),
        Conv("Conv2d_0c_1x7", 224),
        Conv("Conv2d_0d_7x1", 224),
        Conv("Conv2d_0e_1x7", 256),
    ],
    [AveragePool(), Conv("Conv2d_0b_1x1", 128)],
]
_BLOCK_7A = [
    [Conv("Conv2d_0a_1x1", 192), Conv("Conv2d_1a_3x3", 192, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 256),
        Conv("Conv2d_0b_1x7", 256),
        Conv("Conv2d_0c_7x1", 320),
        Conv("Conv2d_1a_3x3", 320, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]
_BLOCK_7 = [
    [Conv("Conv2d_0a_1x1", 256)],
    [
        Conv("Conv2d_0a_1x1", 384),
        Fork("concat", [Conv("Conv2d_0b_1x3", 256), Conv("Conv2d_0c_3x1", 256)]),
    ],
    [
        Conv("Conv2d_0a_1x1", 384),
        Conv("Conv2d_0b_3x1", 448),
        Conv("Conv2d_0c_1x3", 512),
        Fork("concat", [Conv("Conv2d_0d_1x3", 256), Conv("Conv2d_0e_3x1", 256)]),
    ],
    [AveragePool(), Conv("Conv2d_0b_1x1", 256)],
]


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns Inception v4; every kernel is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.9997)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = chain(images, _STEM, style)
    x = mixed(x, "Mixed_3a", style, _BLOCK_3A)
    x = mixed(x, "Mixed_4a", style, _BLOCK_4A)
    x = mixed(x, "Mixed_5a", style, _BLOCK_5A)
    for letter in "bcde":
        x = mixed(x, f"Mixed_5{letter}", style, _BLOCK_5)
    x = mixed(x, "Mixed_6a", style, _BLOCK_6A)
    for letter in "bcdefgh":
        x = mixed(x, f"Mixed_6{letter}", style, _BLOCK_6)
    second = auxiliary.features(x, style, names=("AvgPool_1a_5x5", "Conv2d_1b_1x1", "Conv2d_2a"))
    x = mixed(x, "Mixed_7a", style, _BLOCK_7A)
    for letter in "bcd":
        x = mixed(x, f"Mixed_7{letter}", style, _BLOCK_7)

    x = layers.GlobalAveragePooling2D(name="Logits.AvgPool_1a")(x)
    x = layers.Dropout(0.2, name="Logits.Dropout_1b")(x)
    logits = style.dense(x, "Logits.Logits", num_classes)
    if second is not None:
        second = layers.Flatten(name="AuxLogits.flatten")(second)
        second = style.dense(second, "AuxLogits.Aux_logits", num_classes)
    return auxiliary.with_auxiliary(images, logits, second)
