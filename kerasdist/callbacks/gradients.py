"""Arithmetic on gradients: multiply and clip. Sparse gradients stay sparse.

The functions take and return gradients as `tf.GradientTape` gives them: tensors, IndexedSlices for
what an Embedding gathers, or None if the loss does not depend on a variable.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.hooks import graph_checks
from kerasdist.training.hooks.gradient_values import added_up, map_values, values_of

_FACTORS = "_kerasdist_factors"
_NOT_FINITE = graph_checks.message(
    FloatingPointError,
    "The norm of the gradient is infinite or NaN, and clipping by it would make the weights NaN. "
    "No weight was changed. Look for a loss that is not finite, or lower the learning rate.",
)


def multiply(gradient: Any, factor: Any) -> Any:
    """Returns `gradient` times a scalar.

    Several multiplications in a row, also with norms taken in between, cost one in a tf.function.
    """
    return map_values(gradient, lambda values: _product(values, factor))


def _product(values: Any, factor: Any):
    whole, earlier = _factors(values)
    factor = tf.cast(factor, tf.float64 if values.dtype == tf.float64 else tf.float32)
    if earlier is not None:
        factor *= earlier
    product = whole * tf.cast(factor, whole.dtype)
    setattr(product, _FACTORS, (whole, factor))  # What is multiplied next starts from these.
    return product


def _factors(values: Any):
    """Returns what `values` is the product of: a tensor, and a scalar or None."""
    return getattr(values, _FACTORS, (values, None))


def _of_those_there(clip: Callable) -> Callable:
    """Hands a function the gradients that are not None, with one row for each index."""

    @functools.wraps(clip)
    def clip_those_there(gradients: Sequence, limit: float | np.floating) -> list:
        present = [
            added_up(each) if isinstance(each, tf.IndexedSlices) else each
            for each in gradients
            if each is not None
        ]
        clipped = iter(clip(present, limit) if present else ())
        return [None if each is None else next(clipped) for each in gradients]

    return clip_those_there


@_of_those_there
def clip_by_norm(gradients: Sequence, norm: float | np.floating) -> list:
    """Returns each gradient, shortened to L2 norm `norm` if it is longer.

    Rows of a sparse gradient that stand for the same index are added up first, as the update does.

    Source: slim.learning.clip_gradient_norms.
    """
    norms = tf.unstack(_finite(tf.sqrt(tf.stack(_square_sums(gradients)))))
    return [
        multiply(gradient, norm / tf.maximum(each, norm))
        for gradient, each in zip(gradients, norms, strict=True)
    ]


@_of_those_there
def clip_by_global_norm(gradients: Sequence, norm: float | np.floating) -> list:
    """Returns all gradients times the one factor that brings their global norm to `norm`."""
    total = _finite(tf.sqrt(tf.reduce_sum(tf.stack(_square_sums(gradients)))))
    return [multiply(gradient, norm / tf.maximum(total, norm)) for gradient in gradients]


@_of_those_there
def clip_by_value(gradients: Sequence, value: float | np.floating) -> list:
    """Returns the gradients with every element between -value and value."""
    clipped = [
        map_values(gradient, lambda values: tf.clip_by_value(values, -value, value))
        for gradient in gradients
    ]
    # Clipping makes infinity a number, and leaves NaN.
    with tf.control_dependencies([_finite(tf.add_n(_square_sums(clipped)))]):
        return [map_values(gradient, tf.identity) for gradient in clipped]


def _square_sums(gradients: Sequence) -> list:
    """Returns the sum of squares of each gradient: float32 scalars."""
    return [_square_sum(*_factors(values_of(gradient))) for gradient in gradients]


def _square_sum(values: Any, factor: Any):
    # l2_loss is half of it, in one pass over the memory.
    total = 2 * tf.nn.l2_loss(tf.cast(values, tf.float32))
    return total if factor is None else total * tf.cast(factor, tf.float32) ** 2


def _finite(norms: tf.Tensor):
    """Returns `norms`; fails if one is infinite or NaN, before anything is computed from it."""
    return tf.debugging.check_numerics(norms, _NOT_FINITE)
