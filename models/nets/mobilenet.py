"""MobileNet v1 and v2 as slim has them, in several widths.

Source: https://arxiv.org/abs/1704.04861 and https://arxiv.org/abs/1801.04381
"""

import functools

import keras
from keras import layers

from .style import Style

# Filters and strides of each pair of convolutions, depthwise and pointwise.
_V1 = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
# Expansion, filters, how often, and strides of the first.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _build_v1(
    *, width: float, num_classes: int, image_size: int, channels: int, weight_decay: float
) -> keras.Model:
    """Returns MobileNet v1; every kernel but the depthwise ones is regularized."""

    def filters(number: int):
        return max(int(number * width), 8)

    style = Style(
        weight_decay=weight_decay, momentum=0.9997, scale=True, stddev=0.09, activation="relu6"
    )
    images = keras.Input((image_size, image_size, channels), name="images")
    x = style.conv(images, "Conv2d_0", filters(32), 3, strides=2)
    for number, (num_filters, strides) in enumerate(_V1, start=1):
        x = style.depthwise_conv(x, f"Conv2d_{number}_depthwise", 3, strides=strides)
        x = style.conv(x, f"Conv2d_{number}_pointwise", filters(num_filters), 1)
    logits = style.logits(x, "Logits.Conv2d_1c_1x1", num_classes, keep=0.999)
    return keras.Model(images, logits)


def _build_v2(
    *, width: float, num_classes: int, image_size: int, channels: int, weight_decay: float
) -> keras.Model:
    """Returns MobileNet v2; every kernel but the depthwise ones is regularized."""
    style = Style(
        weight_decay=weight_decay, momentum=0.997, scale=True, stddev=0.09, activation="relu6"
    )
    images = keras.Input((image_size, image_size, channels), name="images")
    x = style.conv(images, "Conv", _divisible(32 * width), 3, strides=2)
    number = 0
    for expansion, filters, times, first_strides in _V2:
        for strides in (first_strides, *(1,) * (times - 1)):
            scope = f"expanded_conv_{number}" if number else "expanded_conv"
            x = _expanded(x, scope, expansion, _divisible(filters * width), strides, style)
            number += 1
    # Narrow nets keep the last features, as slim's fine-grained mode does.
    x = style.conv(x, "Conv_1", _divisible(1280 * max(width, 1)), 1)
    logits = style.logits(x, "Logits.Conv2d_1c_1x1", num_classes, keep=0.8)
    return keras.Model(images, logits)


def _expanded(
    x: keras.KerasTensor, scope: str, expansion: int, filters: int, strides: int, style: Style
):
    """Adds more channels, a depthwise convolution and fewer channels; and `x`, if it fits."""
    shortcut = x
    if expansion > 1:
        x = style.conv(x, f"{scope}.expand", x.shape[-1] * expansion, 1)
    x = style.depthwise_conv(x, f"{scope}.depthwise", 3, strides=strides)
    x = style.conv(x, f"{scope}.project", filters, 1, activate=False)
    if strides == 1 and shortcut.shape[-1] == filters:
        x = layers.Add(name=f"{scope}.sum")([shortcut, x])
    return x


def _divisible(filters: float) -> int:
    """Returns the multiple of 8 that is next, and not less than nine tenths."""
    rounded = max(8, int(filters + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * filters else rounded


mobilenet_v1 = functools.partial(_build_v1, width=1.0)
mobilenet_v1_075 = functools.partial(_build_v1, width=0.75)
mobilenet_v1_050 = functools.partial(_build_v1, width=0.5)
mobilenet_v1_025 = functools.partial(_build_v1, width=0.25)
mobilenet_v2 = functools.partial(_build_v2, width=1.0)
mobilenet_v2_140 = functools.partial(_build_v2, width=1.4)
mobilenet_v2_035 = functools.partial(_build_v2, width=0.35)
