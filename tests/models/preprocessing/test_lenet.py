"""LeNet's preprocessing."""

import numpy as np
import tensorflow as tf

from models import preprocessing


def test_the_middle_is_kept_and_scaled_to_about_one():
    image = tf.constant(np.arange(16, dtype="uint8").reshape(4, 4, 1) * 16)

    result = preprocessing.find("lenet")(image, image_size=2, seed=None)

    expected = (np.array([[80, 96], [144, 160]]) - 128) / 128
    np.testing.assert_array_equal(result[..., 0], expected)
    assert result.dtype == tf.float32


def test_a_smaller_image_gets_a_black_border():
    image = tf.fill([2, 2, 1], tf.constant(255, tf.uint8))

    result = preprocessing.find("lenet")(image, image_size=4, seed=None)

    assert result.shape == (4, 4, 1)
    assert result[0, 0, 0] == -1
