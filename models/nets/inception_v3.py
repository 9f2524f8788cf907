"""Inception v3 as slim has it, with its second classifier.

Source: https://arxiv.org/abs/1512.00567
"""

import keras

from . import auxiliary
from .branches import AveragePool, Conv, Fork, MaxPool, chain, mixed
from .style import Style

STEM = (
    Conv("Conv2d_1a_3x3", 32, strides=2, padding="valid"),
    Conv("Conv2d_2a_3x3", 32, padding="valid"),
    Conv("Conv2d_2b_3x3", 64),
    MaxPool("MaxPool_3a_3x3"),
    Conv("Conv2d_3b_1x1", 80, padding="valid"),
    Conv("Conv2d_4a_3x3", 192, padding="valid"),
    MaxPool("MaxPool_5a_3x3"),
)


def build(*, num_classes: int, image_size: int, channels: int, weight_decay: float) -> keras.Model:
    """Returns Inception v3; every kernel is regularized."""
    style = Style(weight_decay=weight_decay, momentum=0.9997)
    images = keras.Input((image_size, image_size, channels), name="images")
    x = chain(images, STEM, style)
    x = mixed(x, "Mixed_5b", style, _block_5(("Conv2d_0a_1x1", "Conv2d_0b_5x5"), 32))
    x = mixed(x, "Mixed_5c", style, _block_5(("Conv2d_0b_1x1", "Conv_1_0c_5x5"), 64))
    x = mixed(x, "Mixed_5d", style, _block_5(("Conv2d_0a_1x1", "Conv2d_0b_5x5"), 64))
    x = mixed(x, "Mixed_6a", style, _BLOCK_6A)
    for name, filters in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        x = mixed(x, f"Mixed_6{name}", style, _block_6(filters))
    seen = auxiliary.features(
        x, style, stddev=0.01, names=("AvgPool_1a_5x5", "Conv2d_1b_1x1", "Conv2d_2a_{}x{}")
    )
    x = mixed(x, "Mixed_7a", style, _BLOCK_7A)
    x = mixed(x, "Mixed_7b", style, _block_7("Conv2d_0b_3x1"))
    x = mixed(x, "Mixed_7c", style, _block_7("Conv2d_0c_3x1"))
    logits = style.logits(x, "Logits.Conv2d_1c_1x1", num_classes, keep=0.8)
    second = (
        None
        if seen is None
        else style.logits(seen, "AuxLogits.Conv2d_2b_1x1", num_classes, stddev=0.001)
    )
    return auxiliary.with_auxiliary(images, logits, second)


def _block_5(names: tuple[str, str], behind_pool: int):
    """Returns the branches of a block; `names` are slim's for those of the second branch."""
    return [
        [Conv("Conv2d_0a_1x1", 64)],
        [Conv(names[0], 48), Conv(names[1], 64)],
        [Conv("Conv2d_0a_1x1", 64), Conv("Conv2d_0b_3x3", 96), Conv("Conv2d_0c_3x3", 96)],
        [AveragePool(), Conv("Conv2d_0b_1x1", behind_pool)],
    ]


_BLOCK_6A = [
    # Slim's name for a 3x3 convolution.
    [Conv("Conv2d_1a_1x1", 384, size=3, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 64),
        Conv("Conv2d_0b_3x3", 96),
        Conv("Conv2d_1a_1x1", 96, size=3, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]


def _block_6(filters: int):
    return [
        [Conv("Conv2d_0a_1x1", 192)],
        [
            Conv("Conv2d_0a_1x1", filters),
            Conv("Conv2d_0b_1x7", filters),
            Conv("Conv2d_0c_7x1", 192),
        ],
        [
            Conv("Conv2d_0a_1x1", filters),
            Conv("Conv2d_0b_7x1", filters),
            Conv("Conv2d_0c_1x7", filters),
            Conv("Conv2d_0d_7x1", filters),
            Conv("Conv2d_0e_1x7", 192),
        ],
        [AveragePool(), Conv("Conv2d_0b_1x1", 192)],
    ]


_BLOCK_7A = [
    [Conv("Conv2d_0a_1x1", 192), Conv("Conv2d_1a_3x3", 320, strides=2, padding="valid")],
    [
        Conv("Conv2d_0a_1x1", 192),
        Conv("Conv2d_0b_1x7", 192),
        Conv("Conv2d_0c_7x1", 192),
        Conv("Conv2d_1a_3x3", 192, strides=2, padding="valid"),
    ],
    [MaxPool("MaxPool_1a_3x3")],
]


def _block_7(name: str):
    """Returns the branches of a block; `name` is slim's for the 3x1 convolution of the second."""
    return [
        [Conv("Conv2d_0a_1x1", 320)],
        [
            Conv("Conv2d_0a_1x1", 384),
            Fork("concat", [Conv("Conv2d_0b_1x3", 384), Conv(name, 384)]),
        ],
        [
            Conv("Conv2d_0a_1x1", 448),
            Conv("Conv2d_0b_3x3", 384),
            Fork("concat", [Conv("Conv2d_0c_1x3", 384), Conv("Conv2d_0d_3x1", 384)]),
        ],
        [AveragePool(), Conv("Conv2d_0b_1x1", 192)],
    ]
