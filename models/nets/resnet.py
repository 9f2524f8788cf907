"""ResNet v1 and v2 as slim has them: 50, 101, 152 and 200 layers.

The last unit of a block halves height and width, where keras.applications has the first do it.

Source: https://arxiv.org/abs/1512.03385 and https://arxiv.org/abs/1603.05027
"""

import functools

import keras
from keras import layers

from .style import Style

_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
_FILTERS = (64, 128, 256, 512)


def _build(
    *,
    version: int,
    depth: int,
    num_classes: int,
    image_size: int,
    channels: int,
    weight_decay: float,
) -> keras.Model:
    """Returns a ResNet; every kernel is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.997, epsilon=1e-5, scale=True)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = layers.ZeroPadding2D(3, name="conv1.pad")(images)
    first = style.conv if version == 1 else style.plain_conv
    x = first(x, "conv1", 64, 7, strides=2, padding="valid")
    x = layers.MaxPooling2D(3, strides=2, padding="same", name="pool1")(x)
    unit = _unit_v1 if version == 1 else _unit_v2
    for block, (num_units, filters) in enumerate(zip(_UNITS[depth], _FILTERS, strict=True), 1):
        for number in range(1, num_units + 1):
            strides = 2 if number == num_units and block < len(_FILTERS) else 1
            scope = f"block{block}.unit_{number}.bottleneck_v{version}"
            x = unit(x, scope, filters, strides, style)
    if version == 2:
        x = style.activate(style.normalize(x, "postnorm"), "postnorm")
    logits = style.logits(x, "logits", num_classes)
    return keras.Model(images, logits)


def _unit_v1(x: keras.KerasTensor, scope: str, filters: int, strides: int, style: Style):
    name = f"{scope}.shortcut"
    if x.shape[-1] == 4 * filters:
        shortcut = _subsample(x, strides, name)
    else:
        shortcut = style.conv(x, name, 4 * filters, 1, strides=strides, activate=False)
    x = style.conv(x, f"{scope}.conv1", filters, 1)
    x = _conv_same(x, f"{scope}.conv2", filters, strides, style)
    x = style.conv(x, f"{scope}.conv3", 4 * filters, 1, activate=False)
    return style.activate(layers.Add(name=f"{scope}.sum")([shortcut, x]), scope)


def _unit_v2(x: keras.KerasTensor, scope: str, filters: int, strides: int, style: Style):
    preact = style.activate(style.normalize(x, f"{scope}.preact"), f"{scope}.preact")
    name = f"{scope}.shortcut"
    if x.shape[-1] == 4 * filters:
        shortcut = _subsample(x, strides, name)
    else:
        shortcut = style.plain_conv(preact, name, 4 * filters, strides=strides)
    x = style.conv(preact, f"{scope}.conv1", filters, 1)
    x = _conv_same(x, f"{scope}.conv2", filters, strides, style)
    x = style.plain_conv(x, f"{scope}.conv3", 4 * filters)
    return layers.Add(name=f"{scope}.sum")([shortcut, x])


def _conv_same(x: keras.KerasTensor, name: str, filters: int, strides: int, style: Style):
    """Adds a 3x3 convolution, padded alike on both sides even if it is strided."""
    if strides == 1:
        return style.conv(x, name, filters, 3)
    x = layers.ZeroPadding2D(1, name=f"{name}.pad")(x)
    return style.conv(x, name, filters, 3, strides=strides, padding="valid")


def _subsample(x: keras.KerasTensor, strides: int, name: str):
    return x if strides == 1 else layers.MaxPooling2D(1, strides=strides, name=name)(x)


resnet_v1_50 = functools.partial(_build, version=1, depth=50)
resnet_v1_101 = functools.partial(_build, version=1, depth=101)
resnet_v1_152 = functools.partial(_build, version=1, depth=152)
resnet_v1_200 = functools.partial(_build, version=1, depth=200)
resnet_v2_50 = functools.partial(_build, version=2, depth=50)
resnet_v2_101 = functools.partial(_build, version=2, depth=101)
resnet_v2_152 = functools.partial(_build, version=2, depth=152)
resnet_v2_200 = functools.partial(_build, version=2, depth=200)
