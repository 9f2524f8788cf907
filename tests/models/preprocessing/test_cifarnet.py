"""CifarNet's preprocessing."""

import numpy as np
import pytest
import tensorflow as tf

from models import preprocessing

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype("uint8")


def preprocess(image=IMAGE, *, image_size=32, seed):
    seed = None if seed is None else tf.constant([0, seed], tf.int64)
    return preprocessing.find("cifarnet")(tf.constant(image), image_size=image_size, seed=seed)


def test_evaluation_standardises_and_distorts_nothing():
    result = preprocess(seed=None)

    expected = (IMAGE - IMAGE.mean()) / IMAGE.std()
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_training_images_differ_by_the_seed_alone():
    np.testing.assert_array_equal(preprocess(seed=1), preprocess(seed=1))
    assert not np.allclose(preprocess(seed=1), preprocess(seed=2))


@pytest.mark.parametrize("size", [8, 32, 48])
@pytest.mark.parametrize("seed", [None, 1])
def test_images_smaller_and_larger_than_the_net_fit(size, seed):
    image = np.resize(IMAGE, (size, size, 3))

    assert preprocess(image, image_size=32, seed=seed).shape == (32, 32, 3)
