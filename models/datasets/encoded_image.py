"""An image in a file or a record, whatever its format and its colors."""

import tensorflow as tf


def decode(content: tf.Tensor | bytes, *, channels: int) -> tf.Tensor:
    """Returns uint8 [height, width, channels] of a JPEG, PNG, BMP, GIF or WebP.

    Gray, transparent and 16-bit images become what the rest of their set is.

    Args:
        content: The encoded image, a string scalar.
        channels: 3 for colors; 1 for gray, made of the colors as --use_grayscale does.
    """
    # TensorFlow decodes no BMP, GIF or WebP, nor the colors of print, to gray.
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, 3])
    return tf.image.rgb_to_grayscale(image) if channels == 1 else image
