"""One split of a dataset, ready to be read."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The examples of a split, and what a training run must know about them.

    Args:
        examples: (image uint8 [height, width, channels], label int64 []), in the stored order.
        num_examples: How many examples the split has.
        label_names: The names of the labels, from 0.
        channels: Channels of the images.
        split_names: All splits of the dataset.
        damage: Says which record of which file cannot be read, after reading has failed; "" if all
            can.
    """

    examples: tf.data.Dataset
    num_examples: int
    label_names: tuple[str, ...]
    channels: int
    split_names: tuple[str, ...]
    damage: Callable[[], str] = lambda: ""

    @property
    def num_classes(self) -> int:
        """Labels are 0 to num_classes - 1."""
        return len(self.label_names)
