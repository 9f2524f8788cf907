"""The preprocessing of Inception nets."""

import numpy as np
import pytest
import tensorflow as tf

from models import preprocessing

preprocess = preprocessing.find("inception")
IMAGE = np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype("uint8")


def bilinear(image, size):
    """Returns what TensorFlow 1 resized to: output pixel i is at i * scale of the input."""

    def places(length):
        at = np.arange(size) * (length / size)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, length - 1), (at - low)

    top, bottom, down = places(image.shape[0])
    left, right, across = places(image.shape[1])
    rows = image[top] * (1 - down)[:, None, None] + image[bottom] * down[:, None, None]
    return rows[:, left] * (1 - across)[:, None] + rows[:, right] * across[:, None]


def test_evaluation_takes_the_middle_as_slim_does():
    result = preprocess(tf.constant(IMAGE), image_size=24, seed=None)

    height, width = IMAGE.shape[:2]
    top, left = int(height * 0.125 / 2), int(width * 0.125 / 2)
    middle = IMAGE[top : height - top, left : width - left] / 255.0
    np.testing.assert_allclose(result, (bilinear(middle, 24) - 0.5) * 2, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_training_is_drawn_by_the_seed_and_stays_in_range(channels):
    first, again, other = (
        preprocess(
            tf.constant(IMAGE[..., :channels]),
            image_size=24,
            seed=tf.constant([0, seed], tf.int64),
        )
        for seed in (1, 1, 2)
    )

    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert first.shape == (24, 24, channels)
    assert -1 <= np.min(first) < 0 < np.max(first) <= 1


def test_training_crops_parts_of_every_size():
    x, y = tf.meshgrid(tf.range(200), tf.range(200))
    ramp = tf.cast(tf.stack([x, y, 0 * x], axis=-1), tf.uint8)

    widths = []
    for seed in range(40):
        result = preprocess(ramp, image_size=24, seed=tf.constant([7, seed], tf.int64))
        across = np.asarray(result)[:, :, 1].mean(axis=1)  # The position, but for brightness.
        widths.append(float(np.ptp(across)) / 2 * 255 / 200)
    assert min(widths) < 0.5 < 0.8 < max(widths) <= 1.7  # Saturation stretches it.


def test_in_a_pipeline_of_images_of_any_size():
    images = tf.data.Dataset.from_generator(
        lambda: iter([np.zeros((5, 9, 3), "uint8"), np.zeros((300, 40, 3), "uint8")]),
        output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    )
    for seed in (None, tf.constant([0, 1], tf.int64)):
        (batch,) = images.map(
            lambda image, seed=seed: preprocess(image, image_size=24, seed=seed)
        ).batch(2)
        assert batch.shape == (2, 24, 24, 3)
