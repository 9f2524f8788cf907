"""What the Inception nets, MobileNets and NASNets take: pixels from -1 to 1, in slim's fast mode.

Images are resized as in TensorFlow 1 (by corners of pixels, not centers), as for slim's weights.
"""

import tensorflow as tf

_CENTRAL_FRACTION = 0.875
_ASPECT_RATIOS = (0.75, 1.33)
_AREAS = (0.05, 1.0)
_MIN_COVERED = 0.1
_MAX_ATTEMPTS = 100
BRIGHTNESS = 32.0 / 255.0
SATURATIONS = (0.5, 1.5)


def preprocess(image: tf.Tensor, *, image_size: int, seed: tf.Tensor | None):
    """Scales uint8 [height, width, channels] to [-1, 1].

    While training: crop a part of 5 to 100 % of the area and an aspect ratio of 3/4 to 4/3, flip
    left to right every other time, change the brightness by up to an eighth, and the saturation of
    colored images by a factor of 0.5 to 1.5. In evaluation: the middle, 87.5 % of each side.
    """
    if seed is None:
        image = _resize(tf.image.central_crop(image, _CENTRAL_FRACTION), image_size)
    else:
        image = _distort(image, image_size, seed)
    return (image - 0.5) * 2.0


def _distort(image: tf.Tensor, image_size: int, seed: tf.Tensor):
    crop, flip, brightness, saturation = tf.unstack(tf.random.split(seed, num=4))
    begin, size = draw_crop(image, seed=crop, boxes=None)
    channels = image.shape[-1]
    image = tf.ensure_shape(tf.slice(image, begin, size), [None, None, channels])
    image = _resize(image, image_size)
    image = tf.image.stateless_random_flip_left_right(image, seed=flip)
    image = tf.image.stateless_random_brightness(image, BRIGHTNESS, seed=brightness)
    if channels == 3:
        image = tf.image.stateless_random_saturation(image, *SATURATIONS, seed=saturation)
    return tf.clip_by_value(image, 0.0, 1.0)


def draw_crop(
    image: tf.Tensor, *, seed: tf.Tensor, boxes: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where a random part of an image begins and its size, int32 [3] each.

    Args:
        image: uint8 [height, width, channels].
        seed: int64 [2].
        boxes: float32 [1, number, 4], as `Dataset.boxes` gives them: the part holds a tenth of one
            of them. None, or no box, is that of the image.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]) if boxes is None else boxes,
        seed=seed,
        min_object_covered=_MIN_COVERED,
        aspect_ratio_range=_ASPECT_RATIOS,
        area_range=_AREAS,
        max_attempts=_MAX_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return begin, size


def _resize(image: tf.Tensor, image_size: int):
    image = tf.image.convert_image_dtype(image, tf.float32)
    return tf.compat.v1.image.resize(image, [image_size, image_size], align_corners=False)
