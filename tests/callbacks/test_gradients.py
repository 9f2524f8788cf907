"""Arithmetic on gradients, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import gradients

RNG = np.random.default_rng(0)
DENSE = [RNG.normal(size=shape).astype("float32") for shape in [(4, 3), (2,), ()]]


def sparse():
    """Returns rows 2, 0 and 2 again of a gradient [4, 3]; its dense value is the sum."""
    return tf.IndexedSlices(tf.constant(RNG.normal(size=(3, 3)), tf.float32), [2, 0, 2], [4, 3])


def dense_value(gradient):
    return tf.convert_to_tensor(gradient).numpy()


def norm(*arrays):
    return np.sqrt(sum(np.square(each).sum() for each in arrays))


def test_multiply():
    np.testing.assert_allclose(gradients.multiply(tf.constant(DENSE[0]), 3), 3 * DENSE[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_multiply_keeps_the_type(dtype):
    product = gradients.multiply(tf.constant([1.0], dtype), tf.constant(0.5))

    assert product.dtype == dtype
    assert float(product[0]) == 0.5


def test_multiply_leaves_none_and_sparse_gradients_what_they_are():
    gradient = sparse()
    product = gradients.multiply(gradient, 3)

    assert gradients.multiply(None, 3) is None
    assert isinstance(product, tf.IndexedSlices)
    np.testing.assert_allclose(dense_value(product), 3 * dense_value(gradient), rtol=1e-5)


def test_several_multiplications_in_a_row_are_one():
    @tf.function
    def step(gradient):
        halved = gradients.multiply(gradient, tf.constant(0.5))
        [clipped] = gradients.clip_by_global_norm([halved], 0.1)
        return gradients.multiply(clipped, -4)

    np.testing.assert_allclose(
        step(tf.constant(DENSE[0])), -4 * 0.1 * DENSE[0] / norm(DENSE[0]), rtol=1e-5
    )
    operations = step.get_concrete_function(tf.constant(DENSE[0])).graph.get_operations()
    products = [each.outputs[0] for each in operations if each.type == "Mul"]
    used = [each for each in products if each.shape == DENSE[0].shape and each.consumers()]
    assert len(used) == 1  # TensorFlow leaves out what nobody uses.


def test_clip_by_norm_shortens_what_is_longer_and_leaves_the_rest():
    clipped = gradients.clip_by_norm([tf.constant(each) for each in DENSE], 2.4)

    assert norm(DENSE[0]) > 2.4 > norm(DENSE[1])
    np.testing.assert_allclose(clipped[0], DENSE[0] * 2.4 / norm(DENSE[0]), rtol=1e-5)
    np.testing.assert_allclose(clipped[1], DENSE[1], rtol=1e-5)
    np.testing.assert_allclose(clipped[2], DENSE[2], rtol=1e-5)


def test_clip_by_global_norm_keeps_the_direction():
    clipped = gradients.clip_by_global_norm([tf.constant(each) for each in DENSE], 1.0)

    for ours, gradient in zip(clipped, DENSE, strict=True):
        np.testing.assert_allclose(ours, gradient / norm(*DENSE), rtol=1e-5)


def test_clip_by_global_norm_leaves_what_is_short():
    clipped = gradients.clip_by_global_norm([tf.constant(each) for each in DENSE], 100.0)

    for ours, gradient in zip(clipped, DENSE, strict=True):
        np.testing.assert_allclose(ours, gradient, rtol=1e-5)


def test_clip_by_value():
    clipped = gradients.clip_by_value([tf.constant(DENSE[0])], 0.5)

    np.testing.assert_allclose(clipped[0], np.clip(DENSE[0], -0.5, 0.5))


CLIPPERS = {
    "norm": gradients.clip_by_norm,
    "global_norm": gradients.clip_by_global_norm,
    "value": gradients.clip_by_value,
}
each_clipper = pytest.mark.parametrize("clip", CLIPPERS.values(), ids=CLIPPERS)


@each_clipper
def test_sparse_gradients_are_clipped_as_their_dense_value_and_stay_sparse(clip):
    gradient = sparse()
    clipped = clip([gradient, None, tf.constant(DENSE[1])], 0.5)
    truth = clip([tf.constant(dense_value(gradient)), tf.constant(DENSE[1])], 0.5)

    assert isinstance(clipped[0], tf.IndexedSlices)
    assert clipped[1] is None
    np.testing.assert_allclose(dense_value(clipped[0]), truth[0], rtol=1e-5)
    np.testing.assert_allclose(clipped[2], truth[1], rtol=1e-5)


@each_clipper
def test_gradients_that_are_zero_stay_zero(clip):
    assert np.array_equal(clip([tf.zeros([3])], 0.5)[0], [0, 0, 0])


@each_clipper
def test_small_types_stay_what_they_are(clip):
    clipped = clip([tf.constant([300.0, 400.0], tf.float16)], 0.5)[0]

    assert clipped.dtype == tf.float16
    assert np.abs(clipped).max() <= 0.5


@each_clipper
def test_gradients_that_are_all_none_stay_none(clip):
    assert clip([None, None], 0.5) == [None, None]


@each_clipper
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_nan_is_refused(clip, wrap):
    def step(gradient):
        return clip([tf.constant(DENSE[0]), gradient], 1.0)

    with pytest.raises(tf.errors.InvalidArgumentError, match="No weight was changed"):
        wrap(step)(tf.constant([1.0, float("nan")]))


@pytest.mark.parametrize("name", ["norm", "global_norm"])
def test_infinity_has_no_norm(name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="infinite or NaN"):
        CLIPPERS[name]([tf.constant([1.0, float("inf")])], 1.0)


def test_infinity_is_clipped_to_the_value():
    clipped = gradients.clip_by_value([tf.constant([float("-inf"), 0.1])], 0.5)[0]

    np.testing.assert_allclose(clipped, [-0.5, 0.1])
