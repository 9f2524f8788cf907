"""Statistics of a tensor in one row of numbers, computed where the tensor is."""

import dataclasses
import functools

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


def row_of(values):
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
def _row_of_flat(flat):
    """Returns the statistics, with operations alone that XLA compiles, too."""
    is_finite = tf.math.is_finite(flat)
    low = tf.reduce_min(tf.where(is_finite, flat, flat.dtype.max))
    high = tf.reduce_max(tf.where(is_finite, flat, flat.dtype.min))
    per_range = tf.math.divide_no_nan(float(NUM_BUCKETS), high - low)
    place = tf.minimum((flat - low) * per_range, NUM_BUCKETS - 1.0)
    # One from NUM_BUCKETS on is left out.
    bucket = tf.cast(tf.where(is_finite, place, float(NUM_BUCKETS)), tf.int32)
    counts = tf.raw_ops.DenseBincount(
        input=bucket, size=NUM_BUCKETS, weights=tf.zeros([0], tf.int32)
    )
    num_zeros = tf.size(flat) - tf.math.count_nonzero(flat, dtype=tf.int32)
    num_not_finite = tf.size(flat) - tf.math.count_nonzero(is_finite, dtype=tf.int32)
    scalars = [
        norm_of(flat),
        tf.math.divide_no_nan(tf.cast(num_zeros, tf.float32), tf.cast(tf.size(flat), tf.float32)),
        tf.cast(num_not_finite, tf.float32),
        low,
        high,
    ]
    return tf.concat([tf.stack(scalars), tf.cast(counts, tf.float32)], axis=0)


def norm_of(values):
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
