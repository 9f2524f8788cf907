"""Where the files of a dataset are broken: asked for after reading them has failed."""

import re

import tensorflow as tf
import tensorflow_datasets as tfds


def first_damage(builder: tfds.core.DatasetBuilder, split: str) -> str:
    """Return which record of which file cannot be read, and why; "" where all can.

    Args:
        builder: of the dataset, whose files are TFRecord.
        split: as in `datasets.load`.
    """
    for file in builder.info.splits[split].file_instructions:
        records = tf.data.TFRecordDataset(file.filename).map(
            builder.info.features.deserialize_example
        )
        number = 0
        try:
            for _ in records:
                number += 1
        except tf.errors.OpError as error:
            line = error.message.partition("\n")[0]
            reason = re.sub(r"{{.*?}} ?| \[Op:.*", "", line)  # Names of TensorFlow's own.
            return f"record {number} (from 0) of {file.filename} cannot be read: {reason}"
        if number != file.examples_in_shard:
            return (
                f"{file.filename} has {number} records, and {file.examples_in_shard} are expected"
            )
    return ""
