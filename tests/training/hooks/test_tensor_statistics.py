"""Statistics of a tensor, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks import tensor_statistics

VALUES = np.random.default_rng(1).normal(size=(40, 5)).astype("float32")
VALUES[VALUES < -0.5] = 0.0


def found_of(values, dtype=tf.float32):
    return tensor_statistics.read(tensor_statistics.row_of(tf.constant(values, dtype)).numpy())


def test_norm_sparsity_range_and_histogram():
    found = found_of(VALUES)

    assert found.norm == pytest.approx(np.linalg.norm(VALUES), rel=1e-6)
    assert found.sparsity == pytest.approx(np.mean(VALUES == 0))
    assert (found.low, found.high) == (VALUES.min(), VALUES.max())
    counts, _ = np.histogram(VALUES, tensor_statistics.NUM_BUCKETS)
    assert np.abs(found.counts - counts).sum() <= 2  # A number at an end may be in either bucket.
    assert found.counts.sum() == VALUES.size
    assert found.num_not_finite == 0


def test_numbers_that_are_not_finite_are_counted_apart():
    found = found_of([1.0, np.nan, 3.0, np.inf, -np.inf])

    assert found.num_not_finite == 3
    assert (found.low, found.high) == (1.0, 3.0)
    assert found.counts.sum() == 2
    assert not np.isfinite(found.norm)


@pytest.mark.parametrize("values", [[0.0, 0.0], [7.0], []], ids=["zeros", "one", "none"])
def test_tensors_without_a_range(values):
    found = found_of(values)

    assert found.counts.sum() == len(values)
    assert found.norm == np.linalg.norm(values)
    assert found.sparsity == (values == [0.0, 0.0])


@pytest.mark.parametrize("others", [[], [np.nan]], ids=["finite", "with NaN"])
@pytest.mark.parametrize("size", [2e-38, 1e19, 3e38])
def test_the_smallest_and_the_largest_ranges(size, others):
    found = found_of([0.0, -size, size, *others])

    assert found.counts.sum() == 3
    assert (found.low, found.high) == pytest.approx((-size, size), rel=1e-6)
    assert found.num_not_finite == len(others)


@pytest.mark.parametrize("dtype", [tf.float16, tf.int32])
def test_other_dtypes(dtype):
    found = found_of([1, 0, 2], dtype)

    assert (found.low, found.high, found.norm) == (0.0, 2.0, pytest.approx(5**0.5))
