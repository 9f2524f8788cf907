"""Classify images: `python -m models.predict --help` lists the flags.

    python -m models.predict --checkpoint_path=runs/first IMAGE [IMAGE ...]

Prints for each image the likeliest classes with their probabilities. Images are JPEG, PNG, BMP or
GIF files, prepared as in evaluation.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from . import command, saved_model
from .datasets.encoded_image import decode
from .files import labels
from .typed_flags import define_count
from .usage_error import UsageError, printable


def main(argv: Sequence[str]) -> int:
    """Predicts as the flags and files in `argv` say and returns the exit code."""
    return command.run(
        _predict, define_flags=_define_flags, argv=argv, description=__doc__, takes_files=True
    )


def _define_flags(values: flags.FlagValues) -> None:
    saved_model.define_flags(values)
    saved_model.define_preprocessing_flag(values)
    define_count(values, "top_k", 5, "How many classes to print.")


def _predict(values: flags.FlagValues, files: Sequence[str]) -> int:
    if not files:
        raise UsageError("No image is given: python -m models.predict --checkpoint_path=RUN IMAGE")
    model, file_of_labels = saved_model.find(values)
    preprocess = saved_model.preprocess_of(model, values)
    _, size, _, channels = model.input_shape
    images = [_read(file, channels) for file in files]
    prepared = tf.stack([preprocess(each, image_size=size, seed=None) for each in images])
    logits = model.predict(prepared, verbose=0)
    names = labels.read(file_of_labels, num_classes=logits.shape[-1])
    for file, row in zip(files, np.asarray(keras.ops.softmax(logits)), strict=True):
        print(printable(file))
        for number in np.argsort(-row, kind="stable")[: values.top_k]:
            print(f"  {row[number]:.4f}  {names[number]}")
    return 0


def _read(file: str, channels: int) -> tf.Tensor:
    try:
        if Path(file).is_fifo():
            raise UsageError(f"{file!r} is a pipe, and would be waited for. Write it to a file.")
        content = Path(file).read_bytes()
        return decode(content, channels=channels)
    except OSError as error:
        raise UsageError(f"{file!r} cannot be read: {error.strerror}.") from error
    except tf.errors.OpError as error:
        raise UsageError(
            f"{file!r} is not an image: JPEG, PNG, BMP, GIF or WebP is needed."
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
