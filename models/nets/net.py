"""A row of the table of nets."""

from dataclasses import dataclass
from typing import Protocol

import keras


class Builder(Protocol):
    """Makes a classifier that takes images and gives logits."""

    def __call__(
        self, *, num_classes: int, image_size: int, channels: int, weight_decay: float
    ) -> keras.Model:
        """Returns a model: float32 [batch, size, size, channels] to logits [batch, classes]."""
        ...


@dataclass(frozen=True, slots=True)
class Net:
    """How a net is built, and what it expects by default.

    Args:
        build: Makes the model.
        image_size: Height and width of its images, in pixels.
        preprocessing: The name of its preprocessing.
        channels: Of its images.
        has_slims_layers: Whether its variables are those of slim's net.
    """

    build: Builder
    image_size: int
    preprocessing: str
    channels: int = 3
    has_slims_layers: bool = True
