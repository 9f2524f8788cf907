"""The numbers of a gradient, whether it is a tensor, slices of one, or None."""

import tensorflow as tf

from kerasdist.training.hooks import gradient_values


def test_values_are_mapped_where_a_gradient_has_some():
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 7]), [9, 1])

    mapped = gradient_values.map_values(slices, lambda values: values * 2)

    assert mapped.values.numpy().tolist() == [[2.0], [4.0]]
    assert mapped.indices is slices.indices
    assert gradient_values.map_values(None, lambda values: values * 2) is None
