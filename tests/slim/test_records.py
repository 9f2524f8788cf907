"""Records that are written here are read by slim, and those of slim here."""

from typing import Any

import numpy as np
import tensorflow as tf

from models import datasets
from models.datasets import slim_records
from tests.slim import legacy

pytestmark = legacy.needs_slim

FILE = "flowers_train_00000-of-00001.tfrecord"
LABELS = [4, 0, 2]
IMAGES = [
    np.random.default_rng(label).integers(0, 256, (9, 5 + label, 3)).astype("uint8")
    for label in LABELS
]


def test_slim_reads_what_is_written_here(tmp_path):
    encoded = [
        slim_records.Encoded(png(image), *image.shape[:2], label)
        for image, label in zip(IMAGES, LABELS, strict=True)
    ]
    slim_records.write(tmp_path / FILE, encoded)

    records = [each.numpy() for each in tf.data.TFRecordDataset(str(tmp_path / FILE))]
    factory = legacy.load("datasets.dataset_factory")
    with legacy.session() as session:
        dataset = factory.get_dataset("flowers", "train", str(tmp_path))
        record = tf.compat.v1.placeholder(tf.string, [])
        decoded = dataset.decoder.decode(record, ["image", "label"])
        read = [session.run(decoded, {record: each}) for each in records]
    check(read)


def test_what_slim_writes_is_read_here(tmp_path):
    utils = legacy.load("datasets.dataset_utils")
    writer: Any = tf.io.TFRecordWriter(str(tmp_path / FILE))
    with writer:
        for image, label in zip(IMAGES, LABELS, strict=True):
            example = utils.image_to_tfexample(png(image), b"png", *image.shape[:2], label)
            writer.write(example.SerializeToString())
    names = {label: f"class {label}" for label in range(5)}
    utils.write_label_file(names, str(tmp_path))

    dataset = datasets.load("flowers", split="train", data_dir=tmp_path)

    assert dataset.label_names == tuple(names.values())
    check([dataset.read(each) for each in tf.data.TFRecordDataset(str(tmp_path / FILE))])


def png(image):
    return tf.io.encode_png(image).numpy()


def check(read):
    assert [int(label) for _, label in read] == LABELS
    for (image, _), expected in zip(read, IMAGES, strict=True):
        np.testing.assert_array_equal(image, expected)
