"""Inception-ResNet v2 as slim has it, with its second classifier.

Source: https://arxiv.org/abs/1602.07261
"""

from collections.abc import Sequence

import keras
from keras import layers

from . import auxiliary
from .branches import AveragePool, Conv, MaxPool, Part, chain, mixed
from .inception_v3 import STEM
from .style import Style

_BLOCK_5B = [
    [Conv("Conv2d_1x1", 96)],
    [Conv("Conv2d_0a_1x1", 48), Conv("Conv2d_0b_5x5", 64)],
    [Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_0b_3x3", 96), Conv("Conv2d_0c_3x3", 96)],
    [AveragePool(), Conv("Conv2d_0b_1x1", 64)],
]
_BLOCK_35 = [
    [Conv("Conv2d_1x1", 32)],
    [Conv("Conv2d_0a_1x1", 32), Conv("Conv2d_0b_3x3", 32)],
    [Conv("Conv2d_0a_1x1", 32), Conv("Conv2d_0b_3x3", 48), Conv("Conv2d_0c_3x3", 64)],
]
_BLOCK_6A = [
    [Conv("Conv2d_1a_3x3", 384, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 256),
        Conv("Conv2d_0b_3x3", 256),
        Conv("Conv2d_1a_3x3", 384, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]
_BLOCK_17 = [
    [Conv("Conv2d_1x1", 192)],
    [Conv("Conv2d_0a_1x1", 128), Conv("Conv2d_0b_1x7", 160), Conv("Conv2d_0c_7x1", 192)],
]
_BLOCK_7A = [
    [Conv("Conv2d_0a_1x1", 256), Conv("Conv2d_1a_3x3", 384, strides=2, padding="valid")],
    [Conv("Conv2d_0a_1x1", 256), Conv("Conv2d_1a_3x3", 288, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 256),
        Conv("Conv2d_0b_3x3", 288),
        Conv("Conv2d_1a_3x3", 320, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]
_BLOCK_8 = [
    [Conv("Conv2d_1x1", 192)],
    [Conv("Conv2d_0a_1x1", 192), Conv("Conv2d_0b_1x3", 224), Conv("Conv2d_0c_3x1", 256)],
]


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns Inception-ResNet v2; every kernel and bias is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.9997, biases_decay=True)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = chain(images, STEM, style)
    x = mixed(x, "Mixed_5b", style, _BLOCK_5B)
    for number in range(1, 11):
        x = _residual(x, f"Repeat.block35_{number}", style, _BLOCK_35, share=0.17)
    x = mixed(x, "Mixed_6a", style, _BLOCK_6A)
    for number in range(1, 21):
        x = _residual(x, f"Repeat_1.block17_{number}", style, _BLOCK_17, share=0.10)
    second = auxiliary.features(x, style, names=("Conv2d_1a_3x3", "Conv2d_1b_1x1", "Conv2d_2a_5x5"))
    x = mixed(x, "Mixed_7a", style, _BLOCK_7A)
    for number in range(1, 10):
        x = _residual(x, f"Repeat_2.block8_{number}", style, _BLOCK_8, share=0.20)
    x = _residual(x, "Block8", style, _BLOCK_8, share=1.0, activate=False)
    x = style.conv(x, "Conv2d_7b_1x1", 1536, 1)

    x = layers.GlobalAveragePooling2D(name="Logits.AvgPool_1a_8x8")(x)
    x = layers.Dropout(0.2, name="Logits.Dropout")(x)
    logits = style.dense(x, "Logits.Logits", num_classes)
    if second is not None:
        second = layers.Flatten(name="AuxLogits.flatten")(second)
        second = style.dense(second, "AuxLogits.Logits", num_classes)
    return auxiliary.with_auxiliary(images, logits, second)


def _residual(
    x: keras.KerasTensor,
    scope: str,
    style: Style,
    branches: Sequence[Sequence[Part]],
    *,
    share: float,
    activate: bool = True,
):
    """Adds a share of what the branches make of `x` to `x`."""
    found = mixed(x, scope, style, branches)
    found = style.plain_conv(found, f"{scope}.Conv2d_1x1", x.shape[-1])
    found = layers.Rescaling(share, name=f"{scope}.share")(found)
    x = layers.Add(name=f"{scope}.sum")([x, found])
    return style.activate(x, scope) if activate else x
