"""What the Inception trainers made of images: crops around objects, and all distortions of colors.

There, each of several threads resized in a way of its own, and distorted the colors in one of two
orders. Here a number that is drawn for each image stands for the thread.
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from . import inception

_NUM_WAYS = 4  # Bilinear, nearest, bicubic and area, as TensorFlow 1 numbers them.
_HUE = 0.2
_CONTRASTS = (0.5, 1.5)
_ADJUSTMENTS = {
    "brightness": tf.image.adjust_brightness,
    "saturation": tf.image.adjust_saturation,
    "hue": tf.image.adjust_hue,
    "contrast": tf.image.adjust_contrast,
}
_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("brightness", "contrast", "saturation", "hue"),
)
_OF_COLORS = ("saturation", "hue")  # Gray images have none.


class Drawn(NamedTuple):
    """The random numbers of an image.

    Attributes:
        begin: Of the crop, int32 [3], in pixels.
        size: The same.
        thread: 0 to 3; how the crop is resized, and whether odd, the order of the colors.
        is_flipped: Whether left and right are exchanged.
        brightness: What is added to all pixels, which are from 0 to 1.
        saturation: What that of each pixel is multiplied by.
        hue: What is added to that of each pixel, in turns.
        contrast: What the distance to the mean of the channel is multiplied by.
    """

    begin: Any
    size: Any
    thread: Any
    is_flipped: Any
    brightness: Any
    saturation: Any
    hue: Any
    contrast: Any


def preprocess(
    image: tf.Tensor, *, image_size: int, seed: tf.Tensor | None, boxes: tf.Tensor | None = None
):
    """Scales uint8 [height, width, channels] to [-1, 1].

    While training: crop a part that holds a tenth of one of the boxes, resize it in one of four
    ways, flip it left to right every other time, and change brightness, saturation, hue and
    contrast in one of two orders. In evaluation as `inception`.

    Args:
        image: As it is stored.
        image_size: Height and width of the result, in pixels.
        seed: int64 [2]; None means evaluation.
        boxes: Bounding boxes of objects, float32 [1, number, 4], as `Dataset.boxes` gives them;
            without any, that of the image.
    """
    if seed is None:
        return inception.preprocess(image, image_size=image_size, seed=None)
    return distort(image, draw(image, seed=seed, boxes=boxes), image_size=image_size)


def draw(image: tf.Tensor, *, seed: tf.Tensor, boxes: tf.Tensor | None) -> Drawn:
    """Returns the random numbers of an image."""
    crop, thread, flip, brightness, saturation, hue, contrast = tf.unstack(
        tf.random.split(seed, num=7)
    )
    begin, size = inception.draw_crop(image, seed=crop, boxes=boxes)
    uniform = functools.partial(tf.random.stateless_uniform, [])
    return Drawn(
        begin=begin,
        size=size,
        thread=uniform(thread, 0, _NUM_WAYS, dtype=tf.int32),
        is_flipped=uniform(flip) < 0.5,
        brightness=uniform(brightness, -inception.BRIGHTNESS, inception.BRIGHTNESS),
        saturation=uniform(saturation, *inception.SATURATIONS),
        hue=uniform(hue, -_HUE, _HUE),
        contrast=uniform(contrast, *_CONTRASTS),
    )


def distort(image: tf.Tensor, drawn: Drawn, *, image_size: int):
    """Returns float32 [image_size, image_size, channels] from -1 to 1, as the numbers say."""
    channels = image.shape[-1]
    image = tf.ensure_shape(tf.slice(image, drawn.begin, drawn.size), [None, None, channels])
    image = tf.image.convert_image_dtype(image, tf.float32)
    resize = functools.partial(tf.compat.v1.image.resize, image, [image_size, image_size])
    ways = [functools.partial(resize, method=number) for number in range(_NUM_WAYS)]
    image = tf.switch_case(drawn.thread, ways)
    image = tf.ensure_shape(image, [image_size, image_size, channels])
    image = tf.where(drawn.is_flipped, tf.reverse(image, axis=[1]), image)
    orders = [functools.partial(_adjust, image, drawn, order) for order in _ORDERS]
    image = tf.switch_case(drawn.thread % len(_ORDERS), orders)
    return (tf.clip_by_value(image, 0.0, 1.0) - 0.5) * 2.0


def _adjust(image: tf.Tensor, drawn: Drawn, order: tuple[str, ...]):
    is_gray = image.shape[-1] == 1
    for name in order:
        if not (is_gray and name in _OF_COLORS):
            image = _ADJUSTMENTS[name](image, getattr(drawn, name))
    return image
