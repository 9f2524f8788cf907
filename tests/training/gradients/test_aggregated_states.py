"""What replicas assign together to a state is what one device assigns to it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import each_strategy, on_workers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(33, 4)).astype("float32")  # The last of batches of 8 has one example.


class Watches(keras.layers.Layer):
    """A layer that knows how many examples it has seen, and the mean of the last ones."""

    def build(self, input_shape):
        options = {"shape": (), "initializer": "zeros", "trainable": False}
        self.seen = self.add_weight(aggregation="sum", **options)
        self.batches = self.add_weight(aggregation="sum", dtype="int32", **options)
        self.last = self.add_weight(aggregation="mean", **options)
        self.average = self.add_weight(aggregation="mean", **options)

    def call(self, inputs, training=False):
        if training:
            mean = tf.reduce_mean(inputs)
            self.seen.assign_add(tf.cast(tf.shape(inputs)[0], "float32"))
            self.batches.assign_add(tf.shape(inputs)[0])
            self.last.assign(mean)
            self.average.assign_add(0.1 * (mean - self.average))
        return inputs / (1.0 + 0.01 * self.seen) + self.last - self.average


def make():
    model = keras.Sequential([keras.Input((4,)), Watches(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def fit(model):
    arguments = {"batch_size": 8, "shuffle": False, "verbose": 0}
    history = model.fit(X, X[:, :1], epochs=2, **arguments).history
    return [history, model.evaluate(X, X[:, :1], batch_size=8, verbose=0)]


@each_strategy
def test_it_is_that_of_the_whole_batch(strategy):
    check_as_plain(strategy, make, fit)


def fit_on_workers(strategy):
    return [outcome_of(strategy.scope(), make, fit)]


@pytest.mark.exhaustive
@on_workers
def test_over_workers_too(workers):
    check_workers(workers, fit_on_workers)
