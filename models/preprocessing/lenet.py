"""What LeNet takes: the middle of the image, in about [-1, 1]; training is not distorted."""

import tensorflow as tf


def preprocess(image: tf.Tensor, *, image_size: int, seed: tf.Tensor | None):
    """Crops or pads uint8 [height, width, channels] to the middle and scales to [-1, 1)."""
    del seed  # Nothing is random here.
    image = tf.image.resize_with_crop_or_pad(image, image_size, image_size)
    return (tf.cast(image, tf.float32) - 128.0) / 128.0
