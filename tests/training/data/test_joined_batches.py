"""Batches that are joined hold the same examples in the same order."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import joined_batches

LENGTHS = [0, 3, 1, 0, 2, 4, 1, 1, 0, 2, 3]


def dense():
    return {"x": tf.reshape(tf.range(33.0), [11, 3]), "ids": tf.range(11)}


def texts():
    return tf.strings.as_string(tf.range(11))


def ragged():
    return tf.RaggedTensor.from_row_lengths(tf.range(sum(LENGTHS)), LENGTHS)


def sparse():
    return tf.sparse.from_dense(tf.cast(tf.reshape(tf.range(55), [11, 5]) % 3 == 0, tf.float32))


def batches_of(examples, size=2):
    return tf.data.Dataset.from_tensor_slices(examples).batch(size)


def as_lists(structure):
    def leaf(each):
        if isinstance(each, tf.RaggedTensor):
            return each.to_list()
        each = tf.sparse.to_dense(each) if isinstance(each, tf.SparseTensor) else each
        return each.numpy().tolist()

    return [leaf(each) for each in tf.nest.flatten(structure) if each is not None]


@pytest.mark.parametrize("make", [dense, texts, ragged, sparse])
def test_the_examples_are_those_of_larger_batches(make):
    found = joined_batches.joined(batches_of(make()), 3)

    expected = batches_of(make(), 6)
    assert list(map(as_lists, found)) == list(map(as_lists, expected))
    assert int(found.cardinality()) == 2
    specs = zip(*map(tf.nest.flatten, (found.element_spec, expected.element_spec)), strict=True)
    for spec, other in specs:
        assert type(spec) is type(other)
        assert spec.shape.as_list() == other.shape.as_list()


def test_parts_that_are_none_stay_so():
    batches = batches_of((texts(), tf.range(11))).map(lambda x, y: (x, None, y))

    joined = joined_batches.joined(batches, 2)

    assert [weights for _, weights, _ in joined] == [None] * 3
    assert [len(y) for _, _, y in joined] == [4, 4, 3]


def test_shapes_may_be_known_or_not_known_at_all():
    known = tf.data.Dataset.range(10).batch(2, drop_remainder=True)
    unknown = known.map(lambda x: tf.numpy_function(np.copy, [x], tf.int64))

    for batches in (known, unknown):
        found = [each.numpy().tolist() for each in joined_batches.joined(batches, 3)]
        assert found == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]


def test_what_is_padded_to_different_lengths_is_an_error_that_says_so():
    batches = tf.data.Dataset.range(1, 9).map(tf.range).padded_batch(2)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Pad all to one length"):
        list(joined_batches.joined(batches, 2))


def test_a_number_for_a_whole_batch_is_refused():
    batches = batches_of(texts()).map(lambda x: (x, 0.5))

    with pytest.raises(ValueError, match=r"Give each example its number.*"):
        joined_batches.joined(batches, 2)
