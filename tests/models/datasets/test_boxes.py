"""Bounding boxes of objects, in records of slim's format."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from models import datasets, input_pipeline
from models.files import labels

BOXES = [[0.1, 0.2, 0.5, 0.75], [0.0, 0.25, 1.0, 1.0]]


def write(folder, *boxes):
    """Writes a record for each list of boxes."""
    labels.write(folder / "labels.txt", ("cat", "dog"))
    image = tf.io.encode_png(np.zeros([4, 5, 3], "uint8")).numpy()
    with contextlib.closing(tf.io.TFRecordWriter(str(folder / "pets_train.tfrecord"))) as writer:
        for found in boxes:
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
            }
            for side, values in zip(
                ("ymin", "xmin", "ymax", "xmax"), np.transpose(found), strict=True
            ):
                features[f"image/object/bbox/{side}"] = tf.train.Feature(
                    float_list=tf.train.FloatList(value=values)
                )
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return datasets.load("pets", split="train", data_dir=str(folder))


def takes_boxes(image, *, image_size, seed, boxes=None):
    """Gives the sums of the sides of all boxes, as an image."""
    return tf.reduce_sum(boxes, axis=[0, 1])[None, None]


def takes_none(image, *, image_size, seed):
    return tf.cast(image, tf.float32)


def batches(dataset, preprocess):
    return input_pipeline.train_batches(
        dataset,
        preprocess=preprocess,
        image_size=1,
        labels_offset=0,
        global_batch_size=1,
        num_threads=1,
        num_readers=1,
        seed=0,
        num_batches=dataset.num_examples,
    )


def test_a_preprocessing_that_takes_them_gets_those_of_each_record(tmp_path):
    dataset = write(tmp_path, BOXES, np.zeros([0, 4]), BOXES[:1])

    found = [image.numpy().ravel() for image, _ in batches(dataset, takes_boxes)]

    expected = [np.zeros(4), np.array(BOXES[0]), np.sum(BOXES, axis=0)]  # By their sums.
    np.testing.assert_allclose(sorted(found, key=sum), expected, atol=1e-6)
    assert all(image.shape == (1, 4, 5, 3) for image, _ in batches(dataset, takes_none))


@pytest.mark.parametrize("name", ["digits", "pets"])
def test_without_boxes_it_gets_none_or_no_box(name, data_dir, tmp_path):
    dataset = write(tmp_path, np.zeros([0, 4]))
    if name == "digits":
        dataset = datasets.load(name, split="train", data_dir=str(data_dir))
    _, record = next(iter(dataset.numbered_records()))

    found = dataset.boxes_for(takes_boxes, record)

    assert {key: each.shape for key, each in found.items()} == (
        {"boxes": (1, 0, 4)} if name == "pets" else {}
    )
    assert dataset.boxes_for(takes_none, record) == {}


@pytest.mark.parametrize("wrong", [-0.1, 1.5, np.nan])
def test_a_box_outside_of_its_image_is_named(wrong, tmp_path):
    dataset = write(tmp_path, BOXES, [[0.0, 0.0, 1.0, wrong]])

    with pytest.raises(tf.errors.InvalidArgumentError, match="image/object/bbox is not from 0"):
        list(batches(dataset, takes_boxes))
    assert "record 1 (from 0) of" in dataset.damage()
    assert "image/object/bbox is not from 0 to 1" in dataset.damage()
