"""Arithmetic on gradients: multiply, clip, add noise. Sparse gradients stay sparse.

Every function takes and returns gradients as `tf.GradientTape` gives them: tensors, IndexedSlices for
what an Embedding gathers, or None where the loss does not depend on a variable.
"""

from typing import Any

import tensorflow as tf


def multiply(gradient, factor) -> Any:
    """Returns `gradient` times a scalar."""
    return _on_values(gradient, lambda values: values * tf.cast(factor, values.dtype))


def clip_by_norm(gradient, norm) -> Any:
    """Returns `gradient`, shortened to L2 norm `norm` where it is longer.

    Source: slim.learning.clip_gradient_norms, which clips every variable by itself. Rows of a sparse
    gradient that stand for the same index are added up first, as the update does.
    """
    gradient = _deduplicated(gradient)
    return _on_values(gradient, lambda values: tf.clip_by_norm(values, norm))


def clip_by_value(gradient, value) -> Any:
    """Returns `gradient` with every element between -value and value."""
    gradient = _deduplicated(gradient)
    return _on_values(gradient, lambda values: tf.clip_by_value(values, -value, value))


def global_norm(gradients) -> tf.Tensor:
    """Returns the L2 norm of all gradients together: float32 scalar."""
    squares = [
        tf.reduce_sum(tf.square(tf.cast(_values(_deduplicated(gradient)), tf.float32)))
        for gradient in gradients
        if gradient is not None
    ]
    return tf.sqrt(tf.add_n(squares))


def clip_by_global_norm(gradients, norm) -> list:
    """Returns all gradients times the one factor that brings their global norm to `norm` at most.

    A global norm that is infinite or NaN gives NaN gradients, as in TensorFlow.
    """
    gradients = [_deduplicated(gradient) for gradient in gradients]
    total = global_norm(gradients)
    # The same as norm / max(total, norm), but NaN where total is not finite.
    factor = norm / tf.maximum(total, norm) + (total - total)
    return [multiply(gradient, factor) for gradient in gradients]


def add_noise(gradient, stddev, seed) -> Any:
    """Returns `gradient` plus normal noise with mean 0, drawn from `seed` [2].

    The noise of a sparse gradient is added to the rows that it holds.
    """

    def noisy(values):
        return values + tf.random.stateless_normal(
            tf.shape(values), seed, stddev=tf.cast(stddev, values.dtype), dtype=values.dtype
        )

    return _on_values(_deduplicated(gradient), noisy)


def _on_values(gradient, function):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _deduplicated(gradient):
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
