"""What VGG and the ResNets take: pixels from 0 to 255 less the mean color of ImageNet.

Images are resized as in TensorFlow 1 (by corners of pixels, not centers), as for slim's weights.
"""

import tensorflow as tf

_MEANS = {3: (123.68, 116.78, 103.94)}
# The brightness of that color, for gray images.
_MEANS[1] = (0.2989 * _MEANS[3][0] + 0.587 * _MEANS[3][1] + 0.114 * _MEANS[3][2],)
_SMALLEST_SIDE, _LARGEST_SIDE = 256, 512  # Of the shorter side, before the crop.


def preprocess(image: tf.Tensor, *, image_size: int, seed: tf.Tensor | None):
    """Resizes uint8 [height, width, channels], crops it, and subtracts the mean color.

    In training the shorter side becomes 256 to 512 pixels long, the crop is random, and half of the
    images are flipped left to right. In evaluation it becomes 256 pixels long, and the middle is
    kept. It is never shorter than the net's images.
    """
    channels = image.shape[-1]
    if seed is None:
        image = _resize(image, max(_SMALLEST_SIDE, image_size))
        offset = (tf.shape(image)[:2] - image_size) // 2
        image = tf.image.crop_to_bounding_box(image, *tf.unstack(offset), image_size, image_size)
    else:
        side, crop, flip = tf.unstack(tf.random.split(seed, num=3))
        length = tf.random.stateless_uniform(
            [], side, _SMALLEST_SIDE, _LARGEST_SIDE + 1, dtype=tf.int32
        )
        image = _resize(image, tf.maximum(length, image_size))
        size = [image_size, image_size, channels]
        image = tf.image.stateless_random_crop(image, size, seed=crop)
        image = tf.image.stateless_random_flip_left_right(image, seed=flip)
    return tf.ensure_shape(image, [image_size, image_size, channels]) - _MEANS[channels]


def _resize(image: tf.Tensor, side: int | tf.Tensor):
    """Resizes so that the shorter side has this length; keeps the aspect ratio."""
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    scale = tf.cast(side, tf.float32) / tf.minimum(height, width)
    size = tf.cast(tf.math.rint([height * scale, width * scale]), tf.int32)
    return tf.compat.v1.image.resize(tf.cast(image, tf.float32), size, align_corners=False)
