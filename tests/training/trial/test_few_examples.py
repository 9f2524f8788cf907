"""The examples that a rehearsal uses, and what stands for rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.trial import few_examples
from tests import strategies


def test_inputs_of_all_kinds_are_touched_but_for_whole_numbers():
    ragged = tf.ragged.constant([[0.5, 1.0], [2.5]])
    sparse = tf.sparse.from_dense([[0.0, 0.5], [3.0, 0.0]])
    pixels = tf.range(64.0)
    x = {"ragged": ragged, "sparse": sparse, "pixels": pixels, "ids": tf.constant([1, 2])}

    moved, labels = few_examples.touched((x, tf.constant([0.5])))

    def are_moved(now, before):
        return (now != before).numpy().tolist()

    assert are_moved(moved["ragged"].flat_values, ragged.flat_values) == [True, False, True]
    assert are_moved(moved["sparse"].values, sparse.values) == [True, False]
    assert are_moved(moved["pixels"], pixels) == [False] + [True] * 63
    assert are_moved(moved["ids"], x["ids"]) == [False, False]
    assert labels.numpy().tolist() == [0.5]


@pytest.mark.parametrize(("size", "expected"), [(40, 11), (11, 11), (12, 11), (3, 3), (2, 2)])
def test_the_shares_of_the_replicas_are_not_equal(size, expected):
    x = np.zeros((size, 2))

    taken, weights = few_examples.some_of((tf.constant(x), None), 4, num_replicas=3)

    assert taken.shape == (expected, 2)
    assert weights is None


def test_two_batches_in_one_are_taken_as_a_whole():
    batch = tf.zeros([40, 2]), tf.zeros([7, 2])

    assert few_examples.some_of(batch, 4, num_replicas=3) is batch


NOTHING, FOUND = ([], False), (["found"], True)
FAILS = ValueError("no four largest of three")


@pytest.mark.parametrize(
    ("answers", "size", "expected"),
    [
        ({"few": FAILS, "all": FOUND}, 64, FOUND),
        ({"few": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": NOTHING, "most": FOUND}, 64, FOUND),
        ({"few": NOTHING, "one": FAILS, "most": FAILS}, 64, NOTHING),
        ({"few": NOTHING, "one": NOTHING}, 10**9, NOTHING),
        ({"few": NOTHING, "one": NOTHING}, 8, NOTHING),
        ({"few": NOTHING}, 2, NOTHING),
    ],
)
def test_others_are_asked_where_a_few_are_too_few_or_hide_something(answers, size, expected):
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    asked_for = []

    def rehearse(*, how_many):
        asked_for.append(how_many)
        model(tf.zeros([8, 4]))
        if isinstance(answers[how_many], Exception):
            raise answers[how_many]
        return answers[how_many]

    assert few_examples.with_enough(rehearse, model, tf.TensorSpec([size, 4])) == expected
    assert asked_for == [*answers]
