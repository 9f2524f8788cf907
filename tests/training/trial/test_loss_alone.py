"""A step is tried as a whole, or, where the loss alone is the user's, that loss."""

import re
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from tests.strategies import on_two_replicas
from tests.training.step.reductions import (
    contrast,
    contrast_with_all,
    global_masked_mean,
    masked_mean,
    mean,
    warnings_of_fit,
    whole_sum,
)


class OwnLoss(keras.Model):
    """A model whose loss alone is the user's, with two outputs and a term of the weights."""

    def __init__(self, *args, reduce):
        super().__init__(*args)
        self.reduce = reduce

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        predictions: Any = y_pred
        means, scales = predictions["mean"], predictions["scale"]
        losses = tf.reduce_mean(tf.square(means - y) * tf.exp(scales), axis=-1)
        weights = tf.reduce_sum(tf.square(self.trainable_variables[0]))
        return self.reduce(losses, means, x) + 0.1 * weights


def make_own_loss(reduce, activation="tanh"):
    inputs = keras.Input((3,))
    hidden = layers.BatchNormalization(synchronized=True)(layers.Dense(4, activation)(inputs))
    outputs = {"mean": layers.Dense(2)(hidden), "scale": layers.Dense(2)(hidden)}
    model = OwnLoss(inputs, outputs, reduce=reduce)
    model.compile("sgd")
    return model


@on_two_replicas
@pytest.mark.parametrize(
    ("reduce", "words"),
    [
        (mean, None),
        (global_masked_mean, None),
        (contrast_with_all, None),
        (whole_sum, "of 'predictions'.*global_sum"),
        (masked_mean, "of 'predictions'.*global_mean"),
        (contrast, "of 'predictions'.*compares"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_the_loss_alone_is_the_users_the_net_predicts_once(strategy, reduce, words):
    predicted = []

    def activation(values):
        if tf.executing_eagerly():
            predicted.append(values)
        return tf.tanh(values)

    activation.__module__ = keras.activations.tanh.__module__  # One of Keras', not the user's own.
    with strategy.scope():
        model = make_own_loss(reduce, activation)

    found = warnings_of_fit(model)

    # A few examples; one of each replica; nearly all of them.
    assert len(predicted) == (1 if words else 3)
    assert len(found) == bool(words)
    assert all(re.search(words, each, re.DOTALL) for each in found)


class OwnMaskedLoss(keras.Sequential):
    """A model of which the loss is a mean over some examples."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y, predictions = tf.convert_to_tensor(y), tf.convert_to_tensor(y_pred)
        mask = tf.cast(y[:, 0] > 0, y.dtype)
        losses = tf.reduce_mean(tf.reshape(predictions**2, [tf.shape(y)[0], -1]), axis=-1)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


@on_two_replicas
@pytest.mark.parametrize("has_mask", [False, True])
def test_predictions_with_a_mask_are_tried_with_the_net(strategy, has_mask):
    with strategy.scope():
        masking = layers.Masking() if has_mask else layers.Identity()
        model = OwnMaskedLoss([keras.Input((3,)), layers.Reshape((1, 3)), masking, layers.Dense(2)])
        model.compile("sgd")

    (found,) = warnings_of_fit(model)

    assert ("predictions" in found) != has_mask


@on_two_replicas
def test_a_small_difference_is_said_with_its_digits(strategy):
    def with_a_small_sum(losses, outputs, x):
        return tf.reduce_mean(losses) + 0.0003 * tf.reduce_sum(losses)

    with strategy.scope():
        model = make_own_loss(with_a_small_sum)

    (message,) = warnings_of_fit(model)

    assert re.search(r"differs by 0\.[1-9]\d% ", message)
