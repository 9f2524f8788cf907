"""Gradients that are sent in 16 bits: how far they are rounded, and what is not."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.gradients import gradient_aggregation, narrow_sums
from kerasdist.training.replica import replicas
from kerasdist.training.step import replica_run
from tests import strategies

NUM_REPLICAS = 3
# Relative, of a sum of three numbers that are rounded, and rounded as they are added.
ROUNDING = {"float16": 3 * 2**-11, "bfloat16": 3 * 2**-8}
each_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


class Messages:
    """Adds up what replicas send that all have the same; keeps the dtypes of what was sent."""

    def __init__(self):
        self.dtypes = []

    def __call__(self, tensors):
        self.dtypes += [each.dtype.name for each in tensors]
        return [self._added_up(each) for each in tensors]

    def _added_up(self, tensor):
        if not isinstance(tensor, tf.IndexedSlices):
            return tf.add_n([tensor] * NUM_REPLICAS)
        values = tf.concat([tensor.values] * NUM_REPLICAS, axis=0)
        return tf.IndexedSlices(values, tf.concat([tensor.indices] * NUM_REPLICAS, axis=0))


def sums_of(gradients, dtype, others=()):
    messages = Messages()
    sums = narrow_sums.sum_up(messages, gradients, list(others), tf.as_dtype(dtype))
    return sums, messages.dtypes


@each_dtype
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e30])
def test_gradients_of_any_size_are_rounded_by_no_more_than_their_bits(dtype, size):
    gradient = (np.random.default_rng(0).normal(size=(50, 4)) * size).astype("float32")

    (total,), dtypes = sums_of([tf.constant(gradient)], dtype)

    assert total.dtype == tf.float32
    assert dtype in dtypes
    np.testing.assert_allclose(total, NUM_REPLICAS * gradient, atol=10 * size * ROUNDING[dtype])
    assert not np.array_equal(total, NUM_REPLICAS * gradient)


@each_dtype
def test_each_gradient_has_a_scale_of_its_own(dtype):
    gradients = [np.array(each, "float32") for each in ([3e4, -6e4], [1e-9], [0.0], [])]

    sums, _ = sums_of(list(map(tf.constant, gradients)), dtype)

    for total, gradient in zip(sums, gradients, strict=True):
        np.testing.assert_allclose(total, NUM_REPLICAS * gradient, rtol=ROUNDING[dtype])


@each_dtype
def test_what_is_not_finite_stays_so_and_alone(dtype):
    gradient = tf.constant([np.inf, -np.inf, np.nan, 1.0])

    (total, other), _ = sums_of([gradient, tf.constant([2.0])], dtype)

    np.testing.assert_array_equal(total, [np.inf, -np.inf, np.nan, NUM_REPLICAS])
    np.testing.assert_array_equal(other, [2.0 * NUM_REPLICAS])


@each_dtype
def test_numbers_that_are_no_gradients_and_other_dtypes_travel_as_they_are(dtype):
    count, precise = tf.constant(16_777_215.0), tf.constant([1 / 3], tf.float64)

    (first, total, counted), dtypes = sums_of([precise, tf.constant([1.0])], dtype, [count])

    assert (first.dtype, total.dtype) == (tf.float64, tf.float32)
    assert float(counted) == float(tf.add_n([count] * NUM_REPLICAS))
    np.testing.assert_array_equal(first, tf.add_n([precise] * NUM_REPLICAS))
    assert dtypes.count(dtype) == 1


def test_rows_travel_in_float16_and_not_in_what_tensorflow_cannot_gather():
    rows = tf.IndexedSlices(tf.constant([[1 / 3], [2e5]]), tf.constant([4, 1]))

    for dtype, sent in (("float16", ["float32", "float16"]), ("bfloat16", ["float32"])):
        (total,), dtypes = sums_of([rows], dtype)

        assert dtypes == sent  # In float16, the largest number goes before.
        assert isinstance(total, tf.IndexedSlices)
        np.testing.assert_array_equal(total.indices, [4, 1] * NUM_REPLICAS)
        np.testing.assert_allclose(
            total.values, [[1 / 3], [2e5]] * NUM_REPLICAS, rtol=2**-10, atol=0.01
        )


def test_nothing_is_sent_in_16_bits_without_gradients():
    (total,), dtypes = sums_of([], "float16", [tf.constant(1.0)])

    assert float(total) == NUM_REPLICAS
    assert dtypes == ["float32"]


def aggregated(strategy, step):
    x = np.arange(1, 6, dtype="float32") / 7
    shares = batches.shares_of(tf.constant(x), strategy)
    outputs = replica_run.run(strategy, lambda data: step(data, replicas.current()), shares).outputs
    return x.mean(), [each.numpy() for each in outputs]


@pytest.fixture
def narrow(monkeypatch):
    """A strategy whose gradients are sent as float16, as if its replicas were workers."""
    strategy = strategies.get("3 replicas")
    deployment = dataclasses.replace(strategy.deployment, allreduce_dtype="float16")
    monkeypatch.setattr(strategy, "deployment", deployment)
    return strategy


def test_replicas_get_the_same_rounded_sum(narrow):
    def step(data, current):
        return gradient_aggregation.aggregate([tf.reduce_mean(data)], current)[0]

    mean, outputs = aggregated(narrow, step)

    assert len(set(outputs)) == 1
    assert outputs[0] != np.float32(mean)
    np.testing.assert_allclose(outputs[0], mean, rtol=ROUNDING["float16"])


def test_extra_sums_are_not_rounded(narrow):
    def step(data, current):
        current.extra_sums["count"] = tf.constant(100_001.0)
        gradient_aggregation.aggregate([tf.reduce_mean(data)], current)
        return current.sums["count"]

    assert aggregated(narrow, step)[1] == [300_003.0] * NUM_REPLICAS


def test_a_sum_that_is_differentiated_once_more_is_not_rounded(narrow):
    def step(data, current):
        with tf.GradientTape() as tape:
            tape.watch(data)
            return gradient_aggregation.aggregate([tf.reduce_mean(data)], current)[0]

    mean, outputs = aggregated(narrow, step)

    np.testing.assert_allclose(outputs, mean, rtol=1e-6)
