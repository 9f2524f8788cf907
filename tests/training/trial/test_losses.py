"""A loss that is no mean over the examples is found by what it makes of each of them alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.trial.losses import is_mean
from tests.plain import check_as_plain
from tests.strategies import on_two_replicas

RNG = np.random.default_rng(3)
PREDICTIONS = RNG.normal(size=(6, 4)).astype("float32")
COUNTS = [1, 4, 3, 4, 3, 1]  # Of both halves as many.
LABELS = (np.arange(4) < np.array(COUNTS)[:, np.newaxis]).astype("float32")


def look_at(loss, labels=LABELS, num_examples=6) -> bool:
    arguments = tf.constant(labels), tf.constant(PREDICTIONS), 2e-5, num_examples
    return is_mean(loss, *arguments)


def masked_mean(y, predictions):
    return tf.reduce_sum(y * predictions**2) / tf.reduce_sum(y)


def batch_scaled(y, predictions):
    return tf.square(y - predictions / tf.math.reduce_std(predictions))


def squares_in_all(y, predictions):
    return tf.reduce_sum((y - predictions) ** 2)


class OfSeveral(keras.losses.Loss):
    def call(self, y_true, y_pred):
        tf.debugging.assert_greater(tf.shape(y_pred)[0], 1)
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


def wrapped(function, reduction="sum_over_batch_size"):
    class Wrapped(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return function(y_true, y_pred)

    return Wrapped(reduction=reduction)


def test_of_each_example_alone():
    assert not look_at(wrapped(masked_mean))
    assert not look_at(wrapped(batch_scaled))
    assert not look_at(wrapped(squares_in_all))
    assert not look_at(wrapped(lambda y, predictions: tf.boolean_mask(predictions**2, y > 0)))
    assert not look_at(keras.losses.Dice())
    assert look_at(wrapped(squares_in_all, "sum"))
    assert look_at(wrapped(keras.losses.mean_squared_error, "sum"))
    assert look_at(wrapped(keras.losses.huber, None))
    assert look_at(keras.losses.CategoricalFocalCrossentropy(from_logits=True))
    assert look_at(OfSeveral())  # It cannot be seen.


def ten_largest(y, predictions):
    losses = tf.reduce_mean((y - predictions) ** 2, axis=-1)
    return tf.reduce_mean(tf.math.top_k(losses, tf.minimum(10, tf.size(losses))).values)


def test_of_as_many_as_a_batch_has():
    assert look_at(wrapped(ten_largest), num_examples=10)
    assert not look_at(wrapped(ten_largest), num_examples=17)
    assert look_at(wrapped(keras.losses.mean_squared_error), num_examples=17)
    assert look_at(wrapped(squares_in_all, "sum"), num_examples=16)
    assert look_at(keras.losses.CategoricalCrossentropy(from_logits=True), num_examples=2000)


def test_labels_that_are_sparse_or_ragged_are_left_as_they_are():
    def of_present(y, predictions):
        return tf.reduce_mean(tf.square(predictions), axis=-1)

    predictions = tf.constant(PREDICTIONS)
    for labels in (tf.sparse.from_dense(LABELS), tf.RaggedTensor.from_tensor(LABELS)):
        assert is_mean(wrapped(of_present), labels, predictions, 2e-5, 100)


def test_states_and_random_numbers_are_those_of_all_examples():
    state = tf.Variable(1.0)

    def loss(y, predictions):
        state.assign_add(1.0)
        noise = tf.random.normal(tf.shape(predictions))
        return state * tf.reduce_mean((predictions * noise - y) ** 2)

    assert look_at(wrapped(loss))
    assert state.numpy() == 1.0  # ty: ignore[missing-attribute]


def test_a_mean_of_nothing_in_one_example_is_no_mean():
    assert not look_at(wrapped(masked_mean), LABELS * LABELS[:, ::-1])


def test_what_has_no_row_for_each_example_is_not_looked_at():
    assert look_at(wrapped(masked_mean), LABELS[:3])


@on_two_replicas
@pytest.mark.parametrize("own_layer", [False, True], ids=["of keras", "own layer"])
def test_shares_that_are_alike_by_chance_do_not_hide_it(strategy, own_layer):
    # What a check sees is divided into 4 and 3 examples, or into 6 and 5, with 2 each on average.
    counts = np.array([1, 3, 1, 3, 1, 3, 2, 1, 3, 1, 3, 3, *RNG.integers(1, 4, 9)])
    y = (np.arange(3) < counts[:, np.newaxis]).astype("float32")
    x = RNG.normal(size=(len(y), 2)).astype("float32")

    def make():
        inputs = keras.Input((2,))
        layer = Own(3) if own_layer else keras.layers.Dense(3)
        model = keras.Model(inputs, layer(inputs))
        model.compile(keras.optimizers.SGD(0.1), wrapped(masked_mean))
        return model

    def run(model):
        return model.fit(x, y, batch_size=12, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, run)


class Own(keras.layers.Dense):
    pass
