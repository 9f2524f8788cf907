"""What CifarNet takes: standardized images, distorted while training."""

import tensorflow as tf

_PADDING = 4  # Pixels on each side, before the random crop.


def preprocess(image: tf.Tensor, *, image_size: int, seed: tf.Tensor | None):
    """Standardizes uint8 [height, width, channels] to mean 0 and variance 1, per image.

    While training: pad by 4 pixels, crop at random, flip left to right every other time, change
    the brightness by up to 63 and the contrast by a factor of 0.2 to 1.8.
    """
    image = tf.cast(image, tf.float32)
    if seed is None:
        image = tf.image.resize_with_crop_or_pad(image, image_size, image_size)
    else:
        image = _distort(image, image_size, seed)
    return tf.image.per_image_standardization(image)


def _distort(image: tf.Tensor, image_size: int, seed: tf.Tensor):
    crop, flip, brightness, contrast = tf.unstack(tf.random.split(seed, num=4))
    image = _pad(image, image_size)
    size = [image_size, image_size, image.shape[-1]]
    image = tf.image.stateless_random_crop(image, size, seed=crop)
    image = tf.image.stateless_random_flip_left_right(image, seed=flip)
    image = tf.image.stateless_random_brightness(image, 63, seed=brightness)
    return tf.image.stateless_random_contrast(image, 0.2, 1.8, seed=contrast)


def _pad(image: tf.Tensor, image_size: int):
    # At least to the size of the crop, for images that are smaller than the net's.
    shape = tf.shape(image)
    height = tf.maximum(shape[0] + 2 * _PADDING, image_size)
    width = tf.maximum(shape[1] + 2 * _PADDING, image_size)
    return tf.image.resize_with_crop_or_pad(image, height, width)
