"""The numbers of a gradient: a tensor, IndexedSlices as of an Embedding, or None."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def added_up(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices with one for each row, those of the same row added up."""
    rows, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def values_of(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Returns the numbers of a gradient: itself, or the values of its slices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def map_values(gradient: Any, function: Callable[[Any], Any]) -> Any:
    """Returns `gradient` with `function` applied to its values; None and IndexedSlices stay."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)
