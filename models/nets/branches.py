"""Blocks of the Inception nets, written down as lists of branches.

    mixed(x, "Mixed_5b", style, [
        [Conv("Conv2d_0a_1x1", 64)],
        [Conv("Conv2d_0a_1x1", 48), Conv("Conv2d_0b_5x5", 64)],
    ])

Each branch starts from `x`; what they end with is put side by side.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import keras
from keras import layers

from .style import Style


class Part(Protocol):
    """A layer, or several, of a branch."""

    def add(self, x: keras.KerasTensor, scope: str, style: Style):
        """Returns what it makes of `x`; its name stands below `scope`."""
        ...


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution with batch normalization and activation.

    Args:
        name: Slim's; it ends with height and width, such as 1x7.
        filters: The channels it gives.
        size: Height and width, if the name says something else.
        strides: In both directions.
        padding: "same" or "valid".
        stddev: Of the kernel's first values; None is the style's.
    """

    name: str
    filters: int
    size: int | None = None
    strides: int = 1
    padding: str = "same"
    stddev: float | None = None

    def add(self, x: keras.KerasTensor, scope: str, style: Style):
        size = (self.size, self.size) if self.size else _size_in(self.name)
        return style.conv(
            x,
            _below(scope, self.name),
            self.filters,
            size,
            strides=self.strides,
            padding=self.padding,
            stddev=self.stddev,
        )


@dataclass(frozen=True, slots=True)
class MaxPool:
    """The largest of each window; by default windows two apart, inside the image."""

    name: str
    strides: int = 2
    padding: str = "valid"

    def add(self, x: keras.KerasTensor, scope: str, style: Style):
        del style
        size = _size_in(self.name)
        pool = layers.MaxPooling2D(
            size, strides=self.strides, padding=self.padding, name=_below(scope, self.name)
        )
        return pool(x)


@dataclass(frozen=True, slots=True)
class AveragePool:
    """The mean of each window around a place."""

    name: str = "AvgPool_0a_3x3"

    def add(self, x: keras.KerasTensor, scope: str, style: Style):
        del style
        size = _size_in(self.name)
        pool = layers.AveragePooling2D(
            size, strides=1, padding="same", name=_below(scope, self.name)
        )
        return pool(x)


@dataclass(frozen=True, slots=True)
class Fork:
    """Several parts that see the same; what they give is put side by side."""

    name: str
    parts: Sequence[Part]

    def add(self, x: keras.KerasTensor, scope: str, style: Style):
        found = [part.add(x, scope, style) for part in self.parts]
        return layers.Concatenate(name=_below(scope, self.name))(found)


def chain(x: keras.KerasTensor, parts: Sequence[Part], style: Style, scope: str = ""):
    """Returns what `parts`, one after the other, make of `x`."""
    for part in parts:
        x = part.add(x, scope, style)
    return x


def mixed(x: keras.KerasTensor, scope: str, style: Style, branches: Sequence[Sequence[Part]]):
    """Returns what the branches make of `x`, side by side."""
    found = [
        chain(x, parts, style, f"{scope}.Branch_{number}") for number, parts in enumerate(branches)
    ]
    return layers.Concatenate(name=f"{scope}.concat")(found)


def _size_in(name: str) -> tuple[int, int]:
    match = re.search(r"(\d)x(\d)$", name)
    if not match:
        raise ValueError(f"{name!r} does not end with height and width, such as 1x7.")
    return int(match[1]), int(match[2])


def _below(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
