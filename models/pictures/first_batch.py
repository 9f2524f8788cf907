"""Pictures of the first batch as the net sees it, for TensorBoard."""

import contextlib
from pathlib import Path

import numpy as np
import tensorflow as tf

from .mistakes import as_picture

TAG = "first_batch"
_MOST = 16


def write_events(images: np.ndarray, folder: Path) -> None:
    """Writes an event file with pictures, each from its darkest to its brightest pixel.

    Args:
        images: float32 [batch, height, width, channels].
        folder: Where TensorBoard looks for the run.
    """
    shown = images[:_MOST]
    pictures = np.stack([as_picture(each).reshape(each.shape) for each in shown])
    writer = tf.summary.create_file_writer(str(folder))
    with contextlib.closing(writer), writer.as_default(step=0), tf.summary.record_if(True):
        tf.summary.image(TAG, pictures, max_outputs=_MOST)
