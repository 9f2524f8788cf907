"""What reaches the model."""

import numpy as np
import pytest
import tensorflow as tf

from models import input_pipeline
from models.datasets import Dataset
from models.usage_error import UsageError

NUM_EXAMPLES = 10


def dataset():
    """Example i is an image of i's, with the label i % 5."""
    numbers = tf.data.Dataset.range(NUM_EXAMPLES)
    return Dataset(
        records=numbers,
        read=lambda i: (tf.fill([4, 4, 1], tf.cast(i, tf.uint8)), i % 5),
        num_examples=NUM_EXAMPLES,
        label_names=tuple("abcde"),
        channels=1,
        split_names=("train",),
    )


def preprocess(image, *, image_size, seed):
    noise = 0.0 if seed is None else tf.random.stateless_uniform([], seed)
    return tf.cast(image, tf.float32) + 0.5 * noise


def train_batches(*, seed=0, num_threads=1, global_batch_size=4, num_batches=5):
    """Returns two epochs."""
    return input_pipeline.train_batches(
        dataset(),
        preprocess=preprocess,
        image_size=4,
        labels_offset=0,
        global_batch_size=global_batch_size,
        num_threads=num_threads,
        num_readers=2,
        seed=seed,
        num_batches=num_batches,
    )


def images(batches):
    return np.concatenate([batch[:, 0, 0, 0] for batch, _ in batches])


def test_each_epoch_has_each_example_once_and_every_batch_is_full():
    batches = list(train_batches())

    assert [len(batch) for batch, _ in batches] == [4] * 5
    for epoch in np.split(np.floor(images(batches)), 2):
        assert sorted(epoch) == list(range(NUM_EXAMPLES))
    assert int(train_batches().cardinality()) == 5


def test_without_a_number_of_batches_there_is_no_end():
    assert train_batches(num_batches=None).cardinality() == tf.data.INFINITE_CARDINALITY


def test_a_batch_larger_than_the_data_holds_all_examples_at_once():
    # `batch` would allocate that much.
    [(batch, _)] = train_batches(global_batch_size=2**31 - 1, num_batches=1)

    assert sorted(np.floor(batch[:, 0, 0, 0])) == list(range(NUM_EXAMPLES))


def test_labels_are_one_hot_and_belong_to_their_images():
    for batch, labels in train_batches():
        numbers = np.floor(batch[:, 0, 0, 0]).astype(int)
        np.testing.assert_array_equal(labels, np.eye(5)[numbers % 5])


def test_the_seed_decides_order_and_distortion_whatever_the_threads():
    one = images(train_batches(num_threads=1))

    np.testing.assert_array_equal(one, images(train_batches(num_threads=4)))
    assert not np.array_equal(one, images(train_batches(seed=1)))


def test_every_epoch_is_shuffled_and_distorted_anew():
    first, second = np.split(images(train_batches()), 2)

    assert not np.array_equal(np.floor(first), np.floor(second))
    assert not np.array_equal(np.sort(first), np.sort(second))


def test_test_batches_are_in_the_stored_order_and_offset_labels():
    batches = input_pipeline.test_batches(
        dataset(),
        preprocess=preprocess,
        image_size=4,
        labels_offset=2,
        global_batch_size=NUM_EXAMPLES,
        num_threads=2,
        ignore_other_labels=True,
    )

    ((numbers, labels, weights),) = batches

    np.testing.assert_array_equal(numbers[:, 0, 0, 0], range(NUM_EXAMPLES))
    np.testing.assert_array_equal(labels, np.tile(np.eye(5)[:, 2:], [2, 1]))
    np.testing.assert_array_equal(weights, [0, 0, 1, 1, 1] * 2)


def test_an_offset_that_leaves_no_class_is_refused():
    with pytest.raises(UsageError, match=r"less than the number of classes, 5. Received: 5"):
        input_pipeline.num_classes(dataset(), labels_offset=5)


def test_a_label_that_is_no_class_names_its_example():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Label 0 of example [05]"):
        for _ in input_pipeline.train_batches(
            dataset(),
            preprocess=preprocess,
            image_size=4,
            labels_offset=1,
            global_batch_size=4,
            num_threads=1,
            num_readers=1,
            seed=0,
        ):
            pass
