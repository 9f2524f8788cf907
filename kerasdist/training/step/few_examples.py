"""A few examples of a batch, which stand for all of them where a step is rehearsed."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.training.data import batches

# Of each input that is touched: about the last bit of a float32.
_TOUCH = 2.0**-22
# The most different whole numbers that may be classes or marks.
_CLASSES = 32


def with_enough(rehearse: Callable) -> Any:
    """Returns what a rehearsal of a few examples gives; of the whole batch where they are too few.

    Args:
        rehearse: Called as `rehearse(are_few=...)`. It fails with a few where a program takes the
            four largest losses, say, or where a mask leaves none of them.
    """
    try:
        return rehearse(are_few=True)
    except Exception:
        return rehearse(are_few=False)


def some_of(batch, most: int, num_replicas: int):
    """Returns the first examples of a batch, so many that the replicas' shares are not equal.

    They are equal where each replica has one example. Two batches in one, such as 12 examples
    without labels and 4 with, have their proportion on every replica as a whole only.

    Args:
        batch: Tensors [examples, ...].
        most: Examples of each replica.
        num_replicas: In all.
    """
    sizes = {
        batches.num_examples(leaf)
        for leaf in tf.nest.flatten(batch)
        if batches.has_first_axis(leaf)
    }
    if len(sizes) > 1:
        return batch
    number = min(most * num_replicas, *sizes)
    if number > num_replicas and number % num_replicas == 0:
        number -= 1
    return tf.nest.map_structure(
        lambda leaf: batches.rows(leaf, 0, number) if batches.has_first_axis(leaf) else leaf,
        batch,
    )


def touched(batch):
    """Returns a batch whose inputs differ in their last bits, where they are floats.

    Not labels and weights, which may be inputs, too: what is compared with a whole number stays.
    """

    def touch(leaf):
        if not tf.is_tensor(leaf) or leaf.dtype not in (tf.float32, tf.float64):
            return leaf
        is_exact = tf.equal(leaf, tf.round(leaf))
        if tf.reduce_all(is_exact) and tf.size(tf.unique(tf.reshape(leaf, [-1])).y) > _CLASSES:
            is_exact = False  # Pixels.
        return tf.where(is_exact, leaf, leaf * (1.0 + _TOUCH))

    def touch_all(data):  # Of ragged and sparse tensors, the parts.
        return tf.nest.map_structure(touch, data, expand_composites=True)

    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):  # Anchors, positives, ...
        return touch_all(batch)
    x, *others = batch
    leaves = tf.nest.flatten((touch_all(x), *others))
    return tf.nest.pack_sequence_as(batch, leaves)
