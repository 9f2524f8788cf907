"""One sum of the gradients over the replicas, each weighed by its examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import GradientClipping
from kerasdist.private import scopes
from kerasdist.training.data import batches
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.losses import loss_scale
from kerasdist.training.replica import replicas
from kerasdist.training.replica.replicas import StepOptions
from kerasdist.training.step import replica_run
from tests import strategies
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_two_replicas

X = np.arange(1, 6, dtype="float32")


def run(strategy, step, size=5, **arguments):
    """Returns what `step(data, replicas)` returns on each replica."""
    shares = batches.shares_of(tf.constant(X[:size]), strategy)
    return replica_run.run(
        strategy, lambda data: step(data, replicas.current()), shares, **arguments
    ).outputs


def aggregate(gradient, current):
    return gradient_aggregation.aggregate([gradient, None], current)


@each_strategy
@pytest.mark.parametrize("size", [1, 5])
def test_every_replica_gets_the_gradient_of_the_global_batch(strategy, size):
    def step(data, current):
        return aggregate(tf.reduce_mean(data), current)

    for mean, absent in run(strategy, step, size):
        np.testing.assert_allclose(mean, X[:size].mean(), rtol=1e-6)
        assert absent is None


def test_what_a_replica_without_examples_computes_does_not_count():
    def step(data, current):
        gradient = tf.where(current.num_examples > 0, data[0], np.nan)
        return aggregate(gradient, current)[0]

    outputs = run(strategies.get("4 replicas"), step, size=1)

    assert [float(each) for each in outputs] == [1.0] * 4


@each_strategy
def test_a_loss_that_is_weighed_gives_the_same_gradient(strategy):
    def step(data, current):
        optimizer, loss = keras.optimizers.SGD(), tf.reduce_mean(data)
        loss = loss_scale.scale_loss(current, lambda _, loss: loss, optimizer, loss)
        return aggregate(loss, current)[0]

    for mean in run(strategy, step, options=StepOptions(weighs_loss=True)):
        np.testing.assert_allclose(mean, X.mean(), rtol=1e-6)


@each_strategy
@pytest.mark.parametrize("optimizer", ["adagrad", *exhaustive("adam")])
def test_rows_that_are_looked_up_once_are_squared_as_sums_over_all_examples(strategy, optimizer):
    x = np.random.default_rng(0).normal(size=(13, 4)).astype("float32")
    x *= x > 0.5

    def make():
        inputs = keras.Input((4,), sparse=True)
        model = keras.Sequential([inputs, keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        return model

    def fit(model):
        batches = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), x[:, :1])).batch(5)
        return model.fit(batches, epochs=3, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, fit)


class Positions(keras.layers.Layer):
    """Adds what it has learned of each position of a sequence."""

    def __init__(self, count):
        super().__init__()
        self.embedding, self.count = keras.layers.Embedding(4, 2), count

    def call(self, inputs):
        return inputs + self.embedding(self.count(inputs))[tf.newaxis]


@on_two_replicas
@pytest.mark.parametrize(
    "count",
    [
        *exhaustive(lambda inputs: tf.range(4)),
        lambda inputs: keras.ops.arange(tf.shape(inputs)[1]),
        *exhaustive(lambda inputs: np.array([3, 1, 2, 0])),
    ],
    ids=["range", "dynamic", "array"],
)
def test_rows_of_positions_are_squared_as_sums_over_all_examples(strategy, count):
    x = np.random.default_rng(0).normal(size=(13, 4, 2)).astype("float32")

    def make():
        layers = [Positions(count), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4, 2)), *layers])
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
        return model

    def fit(model):
        return model.fit(x, x[:, 0], batch_size=5, epochs=2, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, fit)


@each_strategy
def test_rows_that_are_looked_up_again_and_again_are_squared_one_by_one(strategy):
    x = np.random.default_rng(0).integers(0, 4, size=(13, 3))

    def make():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Embedding(4, 2), keras.layers.Flatten()]
        )
        model.compile("adam", "mse")
        return model

    def fit(model):
        labels = np.ones((13, 6), "float32")
        return model.fit(x, labels, batch_size=5, epochs=3, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, fit)


def make_float8():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    for layer in model.layers:
        layer.quantize("float8")
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


@each_strategy
@pytest.mark.parametrize("clip", [*exhaustive(((),)), (GradientClipping,)], ids=["", "clipped"])
def test_what_overwrites_a_variable_is_the_largest_of_all_replicas(strategy, clip):
    x = np.random.default_rng(0).normal(size=(29, 4)).astype("float32")

    def fit(model):
        is_ours = scopes.strategy_of(model) is strategy
        model.fit(
            *(x, x.sum(axis=1, keepdims=True)),
            **{"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0},
            callbacks=[each(global_norm=1e6) for each in clip if is_ours],
        )
        return [
            np.array(value)
            for layer in model.layers
            for value in (layer.inputs_amax_history, layer.inputs_scale, layer.kernel_amax_history)
        ]

    # Of 8 bits, 3 are digits: where the last bit of a float32 differs, one of them can.
    tolerance = 0 if strategy.num_replicas_in_sync == 1 else 1e-3
    check_as_plain(strategy, make_float8, fit, tolerance=tolerance)
