"""The preprocessing of VGG and ResNets."""

import numpy as np
import pytest
import tensorflow as tf

from models import preprocessing
from tests.models.preprocessing.test_inception import bilinear

preprocess = preprocessing.find("vgg")
MEANS = np.array([123.68, 116.78, 103.94])


def test_evaluation_takes_the_middle_less_the_mean_as_slim_does():
    image = np.random.default_rng(0).integers(0, 256, (128, 128, 3)).astype("uint8")
    result = preprocess(tf.constant(image), image_size=224, seed=None)

    expected = bilinear(image.astype("float64"), 256)[16:240, 16:240] - MEANS
    np.testing.assert_allclose(result, expected, atol=1e-3)  # Of 255: float32.


@pytest.mark.parametrize("size", [(100, 300), (300, 100), (20, 20)])
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_fits_and_keeps_its_mean(size, seed, channels):
    image = tf.fill([*size, channels], tf.constant(200, tf.uint8))
    seed = None if seed is None else tf.constant([0, seed], tf.int64)

    result = preprocess(image, image_size=224, seed=seed)
    assert result.shape == (224, 224, channels)
    means = MEANS if channels == 3 else [MEANS @ (0.2989, 0.587, 0.114)]
    np.testing.assert_allclose(result[0, 0], 200 - np.asarray(means), rtol=1e-5)


def test_training_zooms_crops_and_flips_by_the_seed():
    ramp = tf.tile(tf.cast(tf.range(200), tf.uint8)[None, :, None], [200, 1, 3])
    seen = [
        np.asarray(preprocess(ramp, image_size=224, seed=tf.constant([0, seed], tf.int64)))[0, :, 0]
        for seed in range(40)
    ]

    shares = [abs(row[-1] - row[0]) / 200 for row in seen]
    assert 0.4 < min(shares) < 0.55 < 0.75 < max(shares) < 0.9  # 224 of 512 to 224 of 256.
    assert 10 < sum(row[0] > row[-1] for row in seen) < 30
    assert len({round(float(min(row[0], row[-1]))) for row in seen}) > 10


def test_images_that_are_larger_than_the_side_are_not_cut_short():
    image = tf.zeros([50, 50, 3], tf.uint8)

    assert preprocess(image, image_size=331, seed=None).shape == (331, 331, 3)
