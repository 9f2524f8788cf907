"""A `map` of batches is called with some rows of them only where its graph allows it."""

from typing import Any

import pytest
import tensorflow as tf

from kerasdist.training.data import row_maps

TABLE = [0.0, 1.0, 2.0, 3.0, 4.0]

ALONE = {
    "arithmetic": lambda x: (x - [1.0, 2.0, 3.0]) / 255 + tf.sqrt(tf.abs(x)),
    "a number for each": lambda x: tf.reduce_mean(x, axis=-1),
    "a mean that keeps axes": lambda x: x - tf.reduce_mean(x, axis=[1], keepdims=True),
    "its class": lambda x: tf.one_hot(tf.argmax(x, axis=1), 3),
    "another axis": lambda x: tf.squeeze(tf.expand_dims(x, -1), axis=2),
    "a table": lambda x: tf.gather(TABLE, tf.cast(x, tf.int32)),
    "a choice": lambda x: tf.where(x > 0, x, tf.zeros([1, 3])),
    "a function": lambda x: tf.function(lambda y: tf.cast(y, tf.float64) * 2)(x),
    "images": lambda x: tf.image.resize(
        tf.expand_dims(tf.expand_dims(x, 1), -1), [2, 2], method="nearest"
    ),
}
OTHERS = {
    "a mean over the batch": lambda x: x - tf.reduce_mean(x, axis=0),
    "a mean over all": lambda x: x / tf.reduce_mean(x),
    "the other order": lambda x: x[::-1],
    "two rows for each": lambda x: tf.concat([x, x], axis=0),
    "an axis in front": lambda x: tf.expand_dims(x, 0),
    "a negative axis in front": lambda x: tf.expand_dims(x, -3),
    "rows of a number": lambda x: tf.reshape(x, [-1, 1]),
    "as many rows as there are": lambda x: x * tf.cast(tf.shape(x)[0], tf.float32),
    "no row": lambda x: tf.zeros([4, 3]),
    "numbers for each row of four": lambda x: x[:, :1] + tf.zeros([4, 3]),
    "rows beside columns": lambda x: x + tf.reduce_sum(x, axis=1),
    "sums": lambda x: tf.cumsum(x),
    "in a function": lambda x: tf.function(lambda y: y[::-1] * 2)(x),
    "classes of the batch": lambda x: tf.one_hot(tf.argmax(x, axis=1), 3, axis=0),
}


def checked(x):
    tf.debugging.assert_equal(tf.shape(x)[0], 4)
    return x * 2


OTHERS["a check of the batch"] = checked


def mapped(function):
    spec = tf.TensorSpec([None, 3], tf.float32)
    dataset = tf.data.Dataset.from_generator(lambda: [], output_signature=spec)
    return dataset.map(function)


@pytest.mark.parametrize("name", ALONE)
def test_what_treats_each_row_alone_is_known(name):
    function = ALONE[name]
    x: Any = tf.constant([[1.0, 2, 3], [3, 0, 1], [4, 4, 0]])

    assert row_maps.treats_rows_alone(mapped(function), 1)
    whole: Any = function(x)
    tf.debugging.assert_equal(whole[1:], function(x[1:]))


@pytest.mark.parametrize("name", OTHERS)
def test_what_looks_at_other_rows_or_is_not_known_is_not(name):
    assert not row_maps.treats_rows_alone(mapped(OTHERS[name]), 1)
