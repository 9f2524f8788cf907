"""Statistics of a tensor in one row of numbers, computed where the tensor is."""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

NUM_BUCKETS = 30
_NUM_SCALARS = 5
NUM_COLUMNS = _NUM_SCALARS + NUM_BUCKETS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Of the elements of a tensor.

    Attributes:
        norm: Their L2 norm.
        sparsity: The share of zeros.
        num_not_finite: How many are infinite or NaN; the others alone are in the histogram.
        low: The smallest.
        high: The largest.
        counts: How many are in each of `NUM_BUCKETS` equal parts of the range from low to high.
    """

    norm: float
    sparsity: float
    num_not_finite: int
    low: float
    high: float
    counts: np.ndarray


def row_of(values: Any):
    """Returns the statistics of a tensor: float32 [NUM_COLUMNS]."""
    return _row_of_flat(tf.reshape(tf.cast(values, tf.float32), [-1]))


# A function that stays one: a step has hundreds of tensors, and with thirty operations for each its
# graph takes several times as long to make.
@functools.partial(
    tf.function,
    input_signature=[tf.TensorSpec([None], tf.float32)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)
def _row_of_flat(flat: Any):
    """Returns the statistics, with operations alone that XLA compiles, too."""
    norm = norm_of(flat)
    # Nearly always, and then with half of the passes over the memory.
    rest = tf.cond(
        tf.math.is_finite(norm), lambda: _of_finite(flat), lambda: _without_infinite(flat)
    )
    return tf.concat([[norm], rest], axis=0)


def _of_finite(flat: Any):
    """Returns the statistics after the norm, of numbers that are all finite."""
    low, high = tf.reduce_min(flat), tf.reduce_max(flat)
    bucket = tf.cast((flat - low) * _per_range(low, high), tf.int32)
    # The largest of them is alone in one more.
    counts = _counts(bucket, NUM_BUCKETS + 1)
    counts = tf.concat([counts[:-2], counts[-2:-1] + counts[-1:]], axis=0)
    # As the other one says it of no numbers.
    low, high = tf.minimum(low, flat.dtype.max), tf.maximum(high, flat.dtype.min)
    return _row_after_norm(flat, low, high, tf.constant(0), counts)


def _without_infinite(flat: Any):
    """Returns the same of any numbers; those that are not finite are counted apart."""
    is_finite = tf.math.is_finite(flat)
    low = tf.reduce_min(tf.where(is_finite, flat, flat.dtype.max))
    high = tf.reduce_max(tf.where(is_finite, flat, flat.dtype.min))
    # Halves: the whole range may be more than floats have.
    place = (flat / 2 - low / 2) * _per_range(low / 2, high / 2)
    place = tf.minimum(place, NUM_BUCKETS - 1.0)
    # One from NUM_BUCKETS on is left out.
    bucket = tf.cast(tf.where(is_finite, place, float(NUM_BUCKETS)), tf.int32)
    num_not_finite = tf.size(flat) - tf.math.count_nonzero(is_finite, dtype=tf.int32)
    return _row_after_norm(flat, low, high, num_not_finite, _counts(bucket, NUM_BUCKETS))


def _per_range(low: Any, high: Any):
    # Of the smallest range that floats have it would be infinite, and a product with it NaN.
    return tf.minimum(tf.math.divide_no_nan(float(NUM_BUCKETS), high - low), low.dtype.max)


def _counts(bucket: Any, size: int):
    return tf.raw_ops.DenseBincount(input=bucket, size=size, weights=tf.zeros([0], tf.int32))


def _row_after_norm(flat: Any, low: Any, high: Any, num_not_finite: Any, counts: Any):
    num_zeros = tf.size(flat) - tf.math.count_nonzero(flat, dtype=tf.int32)
    size = tf.cast(tf.size(flat), tf.float32)
    scalars = [
        tf.math.divide_no_nan(tf.cast(num_zeros, tf.float32), size),
        tf.cast(num_not_finite, tf.float32),
        low,
        high,
    ]
    return tf.concat([tf.stack(scalars), tf.cast(counts, tf.float32)], axis=0)


def norm_of(values: Any):
    """Returns the L2 norm of a tensor: float32 scalar."""
    return tf.sqrt(2 * tf.nn.l2_loss(tf.cast(values, tf.float32)))


def read(row: np.ndarray) -> Statistics:
    """Returns what `row_of` has put into a row."""
    norm, sparsity, num_not_finite, low, high = map(float, row[:_NUM_SCALARS])
    return Statistics(
        norm=norm,
        sparsity=sparsity,
        num_not_finite=int(num_not_finite),
        low=low,
        high=high,
        counts=row[_NUM_SCALARS:],
    )
