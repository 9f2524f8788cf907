"""Inception v1 (GoogLeNet) as slim has it: with batch normalization, without second classifiers."""

import keras

from .branches import Conv, MaxPool, chain, mixed
from .style import Style

# Filters of the 1x1 branch, of the two 3x3 branches (before and after), and behind the pool.
_BLOCKS = {
    "Mixed_3b": (64, (96, 128), (16, 32), 32),
    "Mixed_3c": (128, (128, 192), (32, 96), 64),
    "MaxPool_4a_3x3": None,
    "Mixed_4b": (192, (96, 208), (16, 48), 64),
    "Mixed_4c": (160, (112, 224), (24, 64), 64),
    "Mixed_4d": (128, (128, 256), (24, 64), 64),
    "Mixed_4e": (112, (144, 288), (32, 64), 64),
    "Mixed_4f": (256, (160, 320), (32, 128), 128),
    "MaxPool_5a_2x2": None,
    "Mixed_5b": (256, (160, 320), (32, 128), 128),
    "Mixed_5c": (384, (192, 384), (48, 128), 128),
}


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns Inception v1; every kernel is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.9997, stddev=0.01)
    images = keras.Input((image_size, image_size, channels), name="images")
    stem = [
        Conv("Conv2d_1a_7x7", 64, strides=2),
        MaxPool("MaxPool_2a_3x3", padding="same"),
        Conv("Conv2d_2b_1x1", 64),
        Conv("Conv2d_2c_3x3", 192),
        MaxPool("MaxPool_3a_3x3", padding="same"),
    ]
    x = chain(images, stem, style)
    for name, filters in _BLOCKS.items():
        x = _block(x, name, filters, style) if filters else _pool(x, name, style)
    he = Style(weight_decay=weight_decay, momentum=0.9997)
    logits = he.logits(x, "Logits.Conv2d_0c_1x1", num_classes, keep=0.8)
    return keras.Model(images, logits)


def _pool(x: keras.KerasTensor, name: str, style: Style):
    return MaxPool(name, padding="same").add(x, "", style)


def _block(x: keras.KerasTensor, name: str, filters: tuple, style: Style):
    one, (before_a, a), (before_b, b), behind_pool = filters
    # Slim's own slip of the pen, which its checkpoints have, too.
    second = "Conv2d_0a_3x3" if name == "Mixed_5b" else "Conv2d_0b_3x3"
    return mixed(
        x,
        name,
        style,
        [
            [Conv("Conv2d_0a_1x1", one)],
            [Conv("Conv2d_0a_1x1", before_a), Conv("Conv2d_0b_3x3", a)],
            [Conv("Conv2d_0a_1x1", before_b), Conv(second, b)],
            [
                MaxPool("MaxPool_0a_3x3", strides=1, padding="same"),
                Conv("Conv2d_0b_1x1", behind_pool),
            ],
        ],
    )
