"""A picture of what training sees: examples as they are stored, and as the net gets them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from ..datasets import Dataset
from ..files.whole_file import whole_file
from ..preprocessing import Preprocess
from .mistakes import as_picture

_COUNT = 8


def write_picture(
    dataset: Dataset,
    preprocess: Preprocess,
    names: Sequence[str],
    path: Path,
    *,
    image_size: int,
    labels_offset: int,
    seed: int,
) -> None:
    """Writes the first examples of a dataset to `path`, a .png, in one piece.

    Args:
        dataset: What is trained on.
        preprocess: How its images are prepared.
        names: The names of the classes.
        path: Replaced when the picture is complete.
        image_size: Height and width that the net takes.
        labels_offset: Subtracted from labels; smaller labels are invalid.
        seed: The seed of the distortions.
    """
    figure = Figure(figsize=(1.5 * _COUNT, 4), layout="constrained")
    figure.suptitle("Above: as stored. Below: as the net sees them in training.", fontsize=11)
    columns = figure.subplots(2, _COUNT, squeeze=False).T
    for axes in columns.flat:
        axes.axis("off")

    @tf.autograph.experimental.do_not_convert
    def see(number, record):
        image, label = dataset.read(record)
        distortion = tf.stack([tf.constant(seed, tf.int64), number])
        boxes = dataset.boxes_for(preprocess, record)
        return image, preprocess(image, image_size=image_size, seed=distortion, **boxes), label

    examples = dataset.numbered_records().take(_COUNT).map(see)
    for (stored, seen), (image, prepared, label) in zip(columns, examples, strict=False):
        position = int(label) - labels_offset
        stored.set_title(
            names[position] if 0 <= position < len(names) else "invalid",
            fontsize=8,
            parse_math=False,
        )
        for axes, shown in ((stored, image), (seen, prepared)):
            axes.imshow(as_picture(np.asarray(shown)), cmap="gray", vmin=0, vmax=1)
    with whole_file(path) as incomplete:
        figure.savefig(incomplete, dpi=130)
