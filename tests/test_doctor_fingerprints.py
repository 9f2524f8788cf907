"""Fingerprints of examples: the same for the same content, whatever holds it."""

import numpy as np
import tensorflow as tf

from kerasdist.doctor.fingerprints import fingerprints

X = np.arange(12, dtype="float32").reshape(3, 4)
Y = np.array([0, 1, 0])


def test_each_example_has_a_number_of_its_own_content():
    numbers = fingerprints((X, Y))

    assert numbers.shape == (3,)
    assert len(set(numbers)) == 3
    np.testing.assert_array_equal(fingerprints((tf.constant(X), tf.constant(Y))), numbers)
    np.testing.assert_array_equal(fingerprints((X[::-1], Y[::-1])), numbers[::-1])


def test_every_part_of_an_example_counts():
    assert (fingerprints((X, Y)) != fingerprints((X, Y + 1))).all()


def test_scalars_and_none_count_for_nothing():
    np.testing.assert_array_equal(fingerprints((X, None, 3.0)), fingerprints((X,)))
    assert len(fingerprints((None,))) == 0


def test_texts_ragged_and_sparse_tensors_have_rows_too():
    texts = fingerprints(tf.constant(["a", "b", "a"]))
    ragged = fingerprints(tf.ragged.constant([[1], [2, 3], [1]]))
    sparse = fingerprints(tf.sparse.from_dense([[0, 1], [2, 0], [0, 1]]))

    for numbers in (texts, ragged, sparse):
        assert numbers[0] == numbers[2] != numbers[1]
