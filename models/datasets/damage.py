"""What is said of data that cannot be used, and where its files are damaged."""

import os
import re
from collections.abc import Callable

import tensorflow as tf
import tensorflow_datasets as tfds

# Reading raises these. TensorFlow's message may quote a record or the name of a file, and where
# that is not text, Python raises an error of its own that holds the message.
READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
_MOST = 300  # Characters.


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
        for _ in tf.data.TFRecordDataset(os.fsencode(path)).map(decode):
            number += 1
    except READ_ERRORS as error:
        return number, damage_of_record(number, path, reason_of(error))
    return number, ""


def damage_of_record(number: int, path: object, reason: str) -> str:
    """Returns what is said of a record that cannot be read.

    Args:
        number: Of the record in its file, from 0.
        path: The path of the file.
        reason: Why.
    """
    return f"record {number} (from 0) of {path} cannot be read: {reason}"


def reason_of(error: Exception) -> str:
    """Returns what TensorFlow says in one line, without its names of ops and the whole record.

    Args:
        error: One of `READ_ERRORS`, or another one, of which all is told.
    """
    is_hidden = isinstance(error, UnicodeDecodeError)
    text = error.object.decode(errors="replace") if is_hidden else getattr(error, "message", error)
    line = str(text).partition("\n")[0]
    return re.sub(r"{{.*?}} ?| \[Op:.*|, value: '.*", "", line)[:_MOST]
