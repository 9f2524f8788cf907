"""What is said of data that cannot be used, and where its files are damaged."""

import re
from collections.abc import Callable

import tensorflow as tf
import tensorflow_datasets as tfds

from ..usage_error import RunError


class UnreadableDataError(RunError):
    """An example cannot be used; the message names it."""


def first_damage(builder: tfds.core.DatasetBuilder, split: str) -> str:
    """Returns which record of which file cannot be read, and why; "" if all can.

    Args:
        builder: The builder of the dataset, whose files are TFRecords.
        split: As in `datasets.load`.
    """
    decode = builder.info.features.deserialize_example
    for file in builder.info.splits[split].file_instructions:
        number, damage = damage_of_file(file.filename, decode)
        if damage:
            return damage
        if number != file.examples_in_shard:
            return f"{file.filename} has {number} records instead of {file.examples_in_shard}"
    return ""


def damage_of_file(path: str, decode: Callable) -> tuple[int, str]:
    """Returns how many records of a TFRecord file can be read, and why the next one cannot.

    Args:
        path: The path of the file.
        decode: Decodes a record, in the graph of a pipeline.
    """
    number = 0
    try:
        for _ in tf.data.TFRecordDataset(path).map(decode):
            number += 1
    except tf.errors.OpError as error:
        return number, f"record {number} (from 0) of {path} cannot be read: {reason_of(error)}"
    return number, ""


def reason_of(error: tf.errors.OpError) -> str:
    """Returns what TensorFlow says in one line, without its names of ops."""
    return re.sub(r"{{.*?}} ?| \[Op:.*", "", error.message.partition("\n")[0])
