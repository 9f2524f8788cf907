"""What a few examples do not show, and what differs by little: the check finds it.

Each is a program that people write: the loss of the hardest examples, a small term that is computed
from the batch, a small net that trains beside one with large gradients.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import on_three_replicas, on_two_replicas
from tests.warned import warned_by

pytestmark = pytest.mark.thorough
RNG = np.random.default_rng(0)
X = RNG.normal(size=(136, 6)).astype("float32")
Y = RNG.normal(size=(136, 1)).astype("float32")
FIT = {"batch_size": 64, "epochs": 2, "shuffle": False, "verbose": 0}
FOUND = pytest.mark.filterwarnings("ignore:The gradient over", "ignore:What `evaluate` gives")


class OwnStep(keras.Model):
    """A net whose `train_step` is written out."""

    def loss_of(self, x, y):
        return hardest(y, self(x, training=True))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def hardest(y, predictions):
    """The mean of the 32 largest losses of a batch."""
    losses = ops.mean(ops.square(y - predictions), axis=-1)
    return ops.mean(ops.top_k(losses, ops.minimum(32, ops.shape(losses)[0]))[0])


def hardest_compiled():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), hardest)
    return model


def own(kind=OwnStep):
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh")(inputs)
    model = kind(inputs, [layers.Dense(1)(hidden)] + [hidden] * (kind is Decorrelated))
    model.compile(keras.optimizers.SGD(0.1))
    return model


class Decorrelated(OwnStep):
    """Adds a small term of the means over the batch."""

    def loss_of(self, x, y):
        predictions, hidden = (tf.cast(each, tf.float32) for each in self(x, training=True))
        of_batch = tf.reduce_sum(tf.square(tf.reduce_mean(hidden, axis=0)))
        return tf.reduce_mean(tf.square(predictions - y)) + 1e-3 * of_batch


def decorrelated():
    return own(Decorrelated)


class Balance(layers.Layer):
    """Adds a small loss of the means over the batch, as a mixture of experts does."""

    def call(self, x):
        mean = ops.mean(ops.softmax(3 * x), axis=0)
        self.add_loss(1e-2 * ops.sum(mean * mean))
        return x


def balanced():
    hidden = [layers.Dense(8), Balance(), layers.Activation("tanh")]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class Probed(keras.Model):
    """Trains a small net, with a mean over the marked examples, beside one with large gradients."""

    def __init__(self):
        super().__init__()
        self.large, self.small = layers.Dense(6), layers.Dense(1)
        self.probe_optimizer = keras.optimizers.Adam(0.01)

    def build(self, shape):
        self.large.build(shape)
        self.small.build(shape)

    def call(self, x):
        return self.large(x)

    def train_step(self, data):
        x, y = data
        marks = tf.cast(y > 0.3, tf.float32)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(self(x) - 10_000 * x), axis=-1))
        self._update(self.optimizer, tape, loss, self.large.trainable_variables)
        with tf.GradientTape() as tape:
            errors = 0.1 * tf.square(self.small(x) - y)
            probe = tf.reduce_sum(errors * marks) / tf.reduce_sum(marks)
        self._update(self.probe_optimizer, tape, probe, self.small.trainable_variables)
        return {"loss": loss}

    def _update(self, optimizer, tape, loss, variables):
        optimizer.apply(tape.gradient(loss, variables), variables)


def decorrelated_in_16_bits():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return decorrelated()
    finally:
        keras.config.set_dtype_policy("float32")


def probed():
    model = Probed()
    model.build((None, 6))
    model.compile(keras.optimizers.SGD(1e-6))
    return model


def fit(model):
    return model.fit(X, Y, **FIT).history


@on_two_replicas
@FOUND
@pytest.mark.parametrize(
    "make",
    [hardest_compiled, decorrelated, probed, *exhaustive(own, balanced, decorrelated_in_16_bits)],
)
def test_a_difference_is_found(strategy, make):
    check_as_plain(strategy, make, fit)


@on_two_replicas
@FOUND
def test_a_difference_of_what_evaluate_gives_is_found(strategy):
    def evaluate(model):
        return model.evaluate(X, Y, batch_size=64, verbose=0)

    check_as_plain(strategy, balanced, evaluate)


def residual(width=16):
    x = inputs = keras.Input((16, 16, 3))
    for index in range(8):
        y = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization(synchronized=True)(y))
        x = layers.Add()([x, y]) if index else y
    return inputs, layers.GlobalMaxPooling2D()(x), RNG.normal(size=(32, 16, 16, 3))


def convolutional():
    """In 16 bits a sum over the pixels of all examples loses most of what it adds up."""
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(4):
        x = layers.Conv2D(8, 3, padding="same", activation="relu", dtype="mixed_bfloat16")(x)
    x = layers.GlobalAveragePooling2D(dtype="float32")(x)
    return inputs, x, RNG.normal(size=(32, 16, 16, 3))


def deep():
    x = inputs = keras.Input((20,))
    for _ in range(20):
        x = layers.Dense(32, "relu", kernel_initializer="he_normal")(x)
    return inputs, x, RNG.normal(size=(32, 20))


def attending():
    inputs = keras.Input((12,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    for _ in range(3):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    return inputs, layers.GlobalMaxPooling1D()(x), RNG.integers(0, 50, (32, 12))


@on_three_replicas
@pytest.mark.parametrize("make", [deep, convolutional, *exhaustive(attending, residual)])
def test_what_rounding_makes_of_a_deep_net_is_none(strategy, make):
    class Means(OwnStep):
        def loss_of(self, x, y):
            return tf.reduce_mean(tf.square(self(x, training=True) - y))

    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs, outputs, x = make()
        model: Any = Means(inputs, layers.Dense(1)(outputs))
        model.compile(keras.optimizers.SGD(0.01))

    assert warned_by(lambda: model.fit(x, Y[:32], batch_size=32, verbose=0)) == []
