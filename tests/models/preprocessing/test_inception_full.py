"""The preprocessing of the Inception trainers, beside its formulas in NumPy."""

import colorsys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from models import preprocessing
from models.preprocessing import inception_full
from models.preprocessing.inception_full import Drawn

IMAGE: Any = np.random.default_rng(0).integers(90, 166, (60, 80, 3)).astype("uint8")
SIZE = 24
NUMBERS = {"brightness": 0.07, "saturation": 1.3, "hue": -0.15, "contrast": 0.8}
BEGIN, CROP = (5, 3, 0), (37, 52, 3)
ORDERS = [("brightness", "saturation", "hue", "contrast")]
ORDERS += [("brightness", "contrast", "saturation", "hue")]


def weights(way, length):
    """Returns [SIZE, length], by which TensorFlow 1 made pixels of a row of others."""
    at = np.arange(SIZE, dtype="float32") * np.float32(length / SIZE)
    low = np.floor(at).astype(int)
    rest = at - low
    if way == "area":
        ends = at + np.float32(length / SIZE)
        columns = np.arange(length)
        covered = np.minimum(ends[:, None], columns + 1) - np.maximum(at[:, None], columns)
        return np.maximum(covered, 0) / (length / SIZE)
    taps = {
        "bilinear": {0: 1 - rest, 1: rest},
        "nearest": {0: np.ones(SIZE)},
        "bicubic": {tap: cubic(np.abs(np.rint(rest * 1024) / 1024 - tap)) for tap in range(-1, 3)},
    }[way]
    found = np.zeros((SIZE, length))
    for tap, value in taps.items():
        np.add.at(found, (np.arange(SIZE), np.clip(low + tap, 0, length - 1)), value)
    return found


def cubic(x):
    a = -0.75
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x <= 1, near, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def of_hsv(change):
    def adjust(image, number):
        pixels = [change(*colorsys.rgb_to_hsv(*each), number) for each in image.reshape(-1, 3)]
        return np.array([colorsys.hsv_to_rgb(*each) for each in pixels]).reshape(image.shape)

    return adjust


ADJUST = {
    "brightness": lambda image, number: image + number,
    "contrast": lambda image, number: (image - image.mean((0, 1))) * number + image.mean((0, 1)),
    "saturation": of_hsv(lambda h, s, v, number: (h, min(s * number, 1), v)),
    "hue": of_hsv(lambda h, s, v, number: ((h + number) % 1, s, v)),
}


def by_hand(way, order, *, is_flipped):
    top, left, _ = BEGIN
    crop = IMAGE[top : top + CROP[0], left : left + CROP[1]] / 255.0
    image = np.einsum("yi,xj,ijc->yxc", weights(way, CROP[0]), weights(way, CROP[1]), crop)
    image = image[:, ::-1] if is_flipped else image
    for name in order:
        image = ADJUST[name](image, NUMBERS[name])
    return (np.clip(image, 0, 1) - 0.5) * 2


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize(
    ("thread", "way"), [(0, "bilinear"), (1, "nearest"), (2, "bicubic"), (3, "area")]
)
def test_each_thread_resizes_and_distorts_as_published(thread, way, is_flipped):
    image: Any = tf.constant(IMAGE)
    thread_drawn = tf.constant(thread)
    drawn = Drawn(begin=BEGIN, size=CROP, thread=thread_drawn, is_flipped=is_flipped, **NUMBERS)

    found = inception_full.distort(image, drawn, image_size=SIZE)

    expected = by_hand(way, ORDERS[thread % 2], is_flipped=is_flipped)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The other order gives something else.
    other = by_hand(way, ORDERS[1 - thread % 2], is_flipped=is_flipped)
    assert np.abs(found - other).max() > 1e-3


def draws(number, **arguments):
    image: Any = tf.constant(IMAGE)
    seeds: Any = [tf.constant([3, each], tf.int64) for each in range(number)]
    return [inception_full.draw(image, seed=seed, **arguments) for seed in seeds]


def test_what_is_drawn_fills_the_published_ranges():
    found = draws(60, boxes=None)

    assert {int(each.thread) for each in found} == {0, 1, 2, 3}
    assert {bool(each.is_flipped) for each in found} == {False, True}
    for name, low, high in (
        ("brightness", -32 / 255, 32 / 255),
        ("saturation", 0.5, 1.5),
        ("hue", -0.2, 0.2),
        ("contrast", 0.5, 1.5),
    ):
        numbers = [float(getattr(each, name)) for each in found]
        margin = 0.15 * (high - low)
        assert low <= min(numbers) < low + margin
        assert high - margin < max(numbers) < high


def test_a_crop_holds_a_tenth_of_a_box():
    top, left, bottom, right = 6, 8, 18, 24  # In pixels, of a small object.
    height, width = IMAGE.shape[:2]
    box = [top / height, left / width, bottom / height, right / width]

    for each in draws(40, boxes=tf.constant([[box]], tf.float32)):
        (y, x, _), (rows, columns, _) = each.begin.numpy(), each.size.numpy()
        seen = max(0, min(y + rows, bottom) - max(y, top)) * max(
            0, min(x + columns, right) - max(x, left)
        )
        assert seen >= 0.1 * (bottom - top) * (right - left)
    # Without a box, some crops are elsewhere.
    corners = [each.begin.numpy() for each in draws(40, boxes=tf.zeros([1, 0, 4]))]
    assert any(y >= bottom or x >= right for y, x, _ in corners)


@pytest.mark.parametrize("channels", [1, 3])
def test_in_a_pipeline_the_seed_decides_and_evaluation_is_that_of_the_fast_mode(channels):
    preprocess = preprocessing.find("inception_full")
    image = tf.constant(IMAGE[..., :channels])
    seeds = tf.data.Dataset.from_tensor_slices(tf.constant([[0, 1], [0, 1], [0, 2]], tf.int64))

    first, again, other = seeds.map(lambda seed: preprocess(image, image_size=SIZE, seed=seed))

    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert first.shape == (SIZE, SIZE, channels)
    assert -1 <= np.min(first) < np.max(first) <= 1
    np.testing.assert_array_equal(
        preprocess(image, image_size=SIZE, seed=None),
        preprocessing.find("inception")(image, image_size=SIZE, seed=None),
    )
