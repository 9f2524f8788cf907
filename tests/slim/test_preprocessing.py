"""The preprocessings against slim's own, with the random numbers of ours given to slim's."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from models import preprocessing
from models.preprocessing import inception_full
from tests.slim import legacy

pytestmark = legacy.needs_slim

IMAGE = np.random.default_rng(0).integers(0, 256, (300, 400, 3)).astype("uint8")
# Height and width that a net takes, and of the images.
SIZES = {
    "cifarnet": (32, [(32, 32)]),
    "inception": (75, [(75, 99), (300, 400), (201, 111)]),
    "lenet": (28, [(28, 28), (20, 40)]),
    "vgg": (224, [(300, 400), (201, 111)]),
}
COLORS = ("brightness", "saturation", "hue", "contrast")
CASES = [(name, size, each) for name, (size, shapes) in SIZES.items() for each in shapes]


@pytest.mark.parametrize(("name", "size", "shape"), CASES)
def test_evaluation_prepares_images_as_slim_does(name, size, shape):
    check(name, size, image_of(shape), seed=None)


@pytest.mark.parametrize("number", [5, 6, 7])
@pytest.mark.parametrize(("name", "size", "shape"), CASES)
def test_training_distorts_images_as_slim_does(name, size, shape, number, monkeypatch):
    seed = np.array([0, number])
    module = legacy.load(f"preprocessing.{name}_preprocessing")
    for place, function in DRAWING[name](seed).items():
        parent, _, attribute = place.rpartition(".")
        monkeypatch.setattr(module.tf.image if parent else module.tf, attribute, function)

    check(name, size, image_of(shape), seed=seed)


@pytest.mark.parametrize("thread", range(4))
def test_boxes_and_all_colors_are_those_of_slim(thread, monkeypatch):
    seed, size = np.array([0, 5]), 75
    boxes = np.array([[[0.2, 0.3, 0.5, 0.6], [0.6, 0.1, 0.9, 0.4]]], "float32")
    image: Any = tf.constant(IMAGE)
    numbers: Any = {"seed": tf.constant(seed), "boxes": tf.constant(boxes)}
    drawn = inception_full.Drawn(*map(np.array, inception_full.draw(image, **numbers)))
    if thread % 2:  # Slim has other orders of the colors than the Inception trainers' second one.
        drawn = drawn._replace(brightness=0.0, saturation=1.0, hue=0.0, contrast=1.0)
    module = legacy.load("preprocessing.inception_preprocessing")
    for place, function in drawing_full(seed, drawn).items():
        monkeypatch.setattr(module.tf.image, place, function)
    choices = iter([thread, 0])  # How to resize, and the order of the colors.
    monkeypatch.setattr(
        module, "apply_with_random_selector", lambda x, do, num_cases: do(x, next(choices))
    )
    with legacy.session() as session:
        prepared = module.preprocess_for_train(
            tf.constant(IMAGE), size, size, boxes, fast_mode=False, add_image_summaries=False
        )
        expected = session.run(prepared)

    drawn = drawn._replace(thread=tf.constant(thread))
    ours = inception_full.distort(image, drawn, image_size=size)

    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.max(np.abs(expected)))


def drawing_full(seed, drawn):
    def adjust(name):
        function, number = getattr(tf.image, f"adjust_{name}"), getattr(drawn, name)
        return lambda image, **limits: function(image, number)

    crop = split(seed, 7)[0]
    return {
        "sample_distorted_bounding_box": given("sample_distorted_bounding_box", crop),
        "random_flip_left_right": lambda image: image[:, ::-1] if drawn.is_flipped else image,
        **{f"random_{name}": adjust(name) for name in COLORS},
    }


def image_of(shape):
    height, width = shape
    return IMAGE[:height, :width]


def check(name, size, image, *, seed):
    factory = legacy.load("preprocessing.preprocessing_factory")
    theirs = factory.get_preprocessing(name, is_training=seed is not None)
    with legacy.session() as session:
        expected = session.run(theirs(tf.constant(image), size, size))

    ours = preprocessing.find(name)
    result = ours(
        tf.constant(image), image_size=size, seed=None if seed is None else tf.constant(seed)
    )

    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.max(np.abs(expected)))


def of_cifarnet(seed):
    crop, flip, brightness, contrast = split(seed, 4)
    return {
        "random_crop": given("random_crop", crop),
        "image.random_flip_left_right": given("random_flip_left_right", flip),
        "image.random_brightness": given("random_brightness", brightness),
        "image.random_contrast": given("random_contrast", contrast),
    }


def of_inception(seed):
    crop, flip, brightness, saturation = split(seed, 4)
    return {
        "image.sample_distorted_bounding_box": given("sample_distorted_bounding_box", crop),
        "image.random_flip_left_right": given("random_flip_left_right", flip),
        "image.random_brightness": given("random_brightness", brightness),
        "image.random_saturation": given("random_saturation", saturation),
    }


def of_vgg(seed):
    side, crop, flip = split(seed, 3)

    def side_drawn(low, high):
        return tf.random.stateless_uniform([], side, low, high, tf.int32)

    def offset_drawn(number):
        def drawn(low, high):
            # As stateless_random_crop draws height, width and channel.
            return tf.random.stateless_uniform([3], crop, 0, tf.int32.max, tf.int32)[number] % high

        return drawn

    draws = iter([side_drawn, offset_drawn(0), offset_drawn(1)])
    return {
        "random_uniform": lambda shape, minval=0, maxval=None, dtype=None: next(draws)(
            minval, maxval
        ),
        "image.random_flip_left_right": given("random_flip_left_right", flip),
    }


DRAWING = {
    "cifarnet": of_cifarnet,
    "inception": of_inception,
    "lenet": lambda seed: {},  # It draws nothing.
    "vgg": of_vgg,
}


def split(seed, number):
    return list(tf.random.split(tf.constant(seed), num=number).numpy())


def given(name, seed):
    """Returns the function of TensorFlow that draws by the seed."""
    function = getattr(tf.image, f"stateless_{name}")
    return lambda *arguments, **others: function(*arguments, **others, seed=seed)
