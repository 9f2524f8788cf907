"""Models whose variables are made by the first step, as in the examples of others."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kerasdist import callbacks
from tests import strategies
from tests.cases import marked
from tests.strategies import (
    each_kind_of_strategy,
    each_strategy,
    on_workers_and_more,
    run_on_workers,
)

X = np.random.default_rng(0).normal(size=(21, 6)).astype("float32")


class Autoencoder(keras.Model):
    """Has a train_step and no `call`, like Keras' VAE."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.tracker = keras.metrics.Mean(name="reconstruction")
        type(self).num_traces = 0  # One of the object is put back for each replica.

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        type(self).num_traces += not tf.executing_eagerly()  # A trial is no trace.
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.decoder(self.encoder(data)) - data) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"reconstruction": self.tracker.result()}


def autoencoder(*, is_built: bool):
    shapes = [keras.Input((6,))], [keras.Input((2,))]
    encoder = keras.Sequential([*(shapes[0] if is_built else []), layers.Dense(2, "tanh")])
    decoder = keras.Sequential([*(shapes[1] if is_built else []), layers.Dense(6)])
    model = Autoencoder(encoder, decoder)
    model.compile(keras.optimizers.Adam(0.01))
    return model


class Adversaries(keras.Model):
    """Has two optimizers, which `compile` takes, like Keras' GAN."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(1)])
        self.generator = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(6)])
        self.tracker = keras.metrics.Mean(name="d_loss")
        type(self).num_traces = 0  # One of the object is put back for each replica.

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, real):
        type(self).num_traces += not tf.executing_eagerly()  # A trial is no trace.
        noise = real[:, :3]
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(noise)) - self.discriminator(real)
            loss = tf.reduce_mean(tf.nn.softplus(judged))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = tf.reduce_mean(tf.nn.softplus(-self.discriminator(self.generator(noise))))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return {"d_loss": self.tracker.result()}


def adversaries():
    model = Adversaries()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.5))
    return model


class Regression(keras.Model):
    """Calls itself in a train_step of its own, with losses and metrics that `compile` takes."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = layers.Dense(4, "tanh"), layers.Dense(1)
        type(self).num_traces = 0  # One of the object is put back for each replica.

    def call(self, inputs):
        return self.outer(self.inner(inputs))

    def train_step(self, data):
        type(self).num_traces += not tf.executing_eagerly()  # A trial is no trace.
        return super().train_step((data, tf.reduce_sum(data, axis=1, keepdims=True)))


def regression():
    model = Regression()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


MODELS = {
    "autoencoder": functools.partial(autoencoder, is_built=True),
    "autoencoder to build": functools.partial(autoencoder, is_built=False),
    "two optimizers": adversaries,
    "calls itself": regression,
}


def set_learning_rates(model, rate):
    for name in ("optimizer", "d_optimizer", "g_optimizer"):
        if hasattr(model, name):
            getattr(model, name).learning_rate.assign(rate)


def train(strategy, name) -> dict:
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = MODELS[name]()
    given = {"batch_size": 8, "shuffle": False, "verbose": 0}
    set_learning_rates(model, 0.0)
    model.fit(X, **given)  # Makes the weights, and leaves them as they are.
    initial = model.get_weights()
    set_learning_rates(model, 0.01)
    history = model.fit(X, epochs=2, **given).history
    return {
        "initial": initial,
        "final": model.get_weights(),
        "history": list(history.values()),
        "num_traces": model.num_traces,
    }


@functools.cache
def truth(name) -> dict:
    return train(None, name)


def check_equal_to_plain(result, name):
    expected = truth(name)
    for weight, initial in zip(result["initial"], expected["initial"], strict=True):
        np.testing.assert_array_equal(weight, initial)
    for weight, final in zip(result["final"], expected["final"], strict=True):
        np.testing.assert_allclose(weight, final, atol=1e-5)
    np.testing.assert_allclose(result["history"], expected["history"], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", marked(MODELS, exhaustive=MODELS.keys() - {"two optimizers"}))
@each_strategy
def test_the_first_step_makes_what_plain_keras_makes(strategy, name):
    result = train(strategy, name)

    check_equal_to_plain(result, name)
    # What asks for weights before they are made gets them in the second trace.
    makes_weights = name != "autoencoder"
    assert result["num_traces"] == strategy.num_replicas_in_sync * (2 if makes_weights else 1)


def train_all(strategy) -> dict:
    return {name: train(strategy, name) for name in MODELS}


@on_workers_and_more
def test_the_first_step_makes_what_plain_keras_makes_over_workers(workers):
    for results in run_on_workers(train_all, workers, timeout_secs=200):
        for name, result in results.items():
            check_equal_to_plain(result, name)


def test_metric_learning_whose_first_axis_is_no_batch():
    class Pairs(keras.Model):
        def train_step(self, data):
            anchors, positives = data[0], data[1]
            return super().train_step((anchors, positives))

    def fit(strategy):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            inputs = keras.Input((3,))
            model = Pairs(inputs, layers.Dense(3)(inputs))
            model.compile("sgd", "mse")
        pairs = tf.data.Dataset.from_tensor_slices(X.reshape(1, 2, 7, 9)[..., :3]).repeat(3)
        return model.fit(pairs, shuffle=False, verbose=0).history["loss"]

    assert fit(strategies.get("one device")) == fit(None)


@each_kind_of_strategy
def test_callbacks_of_the_update_know_the_weights_that_the_first_step_makes(strategy):
    average = callbacks.MovingAverage(0.5, num_updates=False)
    with strategy.scope():
        model = autoencoder(is_built=False)
    model.fit(X, verbose=0, callbacks=[average, callbacks.GradientClipping(global_norm=0.5)])

    assert len(average.get_state()) == len(model.trainable_variables)


@each_strategy
def test_predict_makes_what_plain_keras_makes(strategy):
    def predict(scope):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential([layers.Dense(4, "tanh"), layers.BatchNormalization()])
        return model.predict(X, batch_size=8, verbose=0)

    expected = predict(contextlib.nullcontext())

    np.testing.assert_allclose(predict(strategy.scope()), expected, atol=1e-6)
