"""Copies of small weights on a worker, and their gradients on the way back; in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers import local_copies
from kerasdist.training.parameter_servers.local_copies import LocalCopies


def make_model(units=2):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])


def test_a_step_reads_copies_and_from_its_update_on_the_weights_themselves():
    model = make_model()
    copies = LocalCopies(model)
    before = model.get_weights()[0]
    kernel, _ = model.trainable_variables
    weight = kernel.value

    @tf.function
    def step():
        with copies.held():
            weight.assign_add(tf.ones([3, 2]))
            seen = tf.identity(kernel.value)
            copies.put_back()
            return seen, tf.identity(kernel.value)

    seen_before, seen_after = step()
    np.testing.assert_array_equal(seen_before, before)
    np.testing.assert_array_equal(seen_after, before + 1)
    assert kernel.value is weight


def test_an_error_ends_the_copies():
    model = make_model()
    kernel, _ = model.trainable_variables
    weight = kernel.value

    @tf.function
    def step():
        with LocalCopies(model).held():
            raise KeyError

    with pytest.raises(KeyError):
        step()

    assert kernel.value is weight


@pytest.mark.parametrize(("units", "are_all"), [(2, True), (2**14, False)])
def test_large_weights_are_not_copied(units, are_all):
    assert LocalCopies(make_model(units)).are_all == are_all


def test_gradients_arrive_in_their_places_and_shapes():
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in ([2, 3], [4], [], [5, 1])]
    variables[1] = variables[1].value  # As a step of the user's own may hand it over.
    dense = [tf.reshape(tf.range(6.0), [2, 3]), tf.range(4.0), None]
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([2]), [5, 1])

    gradients, arrived, _ = local_copies.sent([*dense, slices], variables)

    np.testing.assert_array_equal(gradients[0], dense[0])
    np.testing.assert_array_equal(gradients[1], dense[1])
    assert gradients[2] is None
    np.testing.assert_array_equal(gradients[3].indices, slices.indices)
    assert list(arrived) == [variables[0].value.device]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_note_travels_with_gradients_bit_by_bit(dtype):
    variables = [keras.Variable(np.zeros(3), dtype=dtype), keras.Variable(np.zeros(2), dtype=dtype)]
    gradients = [tf.constant([1, 2, 3], dtype), tf.constant([4, 5], dtype)]
    note = tf.convert_to_tensor([3, (7 << 32) + 0x7FF0_0001], tf.int64)  # Infinite, as a float.

    gradients, _, notes = local_copies.sent(gradients, variables, note)

    assert [gradient.numpy().tolist() for gradient in gradients] == [[1, 2, 3], [4, 5]]
    np.testing.assert_array_equal(notes[variables[0].value.device], note)
