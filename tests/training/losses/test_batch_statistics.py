"""Batch normalization over replicas: what is not synchronized, and what synchronizing costs."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.parity import models
from kerasdist.parity.data import examples
from kerasdist.training.data import batches
from kerasdist.training.step import replica_run
from tests import strategies
from tests.strategies import on_three_replicas, on_two_replicas

pytestmark = pytest.mark.filterwarnings("ignore:Batch normalization:UserWarning")


def train(strategy, num_examples=96, batch_size=16):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = models.normalized()
    model.layers[1].synchronized = False
    x, y = examples(num_examples)
    model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0)
    return model


def replicas_of(strategy, variable):
    return [value.numpy() for value in strategy.experimental_local_results(variable.value)]


@on_three_replicas
def test_moving_statistics_are_the_mean_over_the_replicas(strategy):
    model = train(strategy)
    mean = model.layers[1].moving_mean

    np.testing.assert_allclose(mean.numpy(), np.mean(replicas_of(strategy, mean), axis=0))
    assert np.ptp(replicas_of(strategy, mean), axis=0).max() > 0


@on_three_replicas
def test_one_step_gives_the_mean_of_the_replicas_batch_means(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(momentum=0.5)])
        model.compile("sgd", "mse")
    x, _ = examples(16)
    model.fit(x, x, batch_size=16, shuffle=False, verbose=0)

    variances = [share.var(axis=0) for share in np.array_split(x, strategy.num_replicas_in_sync)]
    np.testing.assert_allclose(
        model.layers[0].moving_variance.numpy(), 0.5 + 0.5 * np.mean(variances, axis=0), rtol=1e-5
    )


@on_three_replicas
def test_evaluation_sees_the_same_statistics_on_every_replica_as_are_saved(strategy, tmp_path):
    model = train(strategy)
    x, y = examples(96)
    saved = model.evaluate(x, y, batch_size=96, verbose=0)
    mean = replicas_of(strategy, model.layers[1].moving_mean)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")

    assert all(np.array_equal(mean[0], other) for other in mean)
    assert loaded.evaluate(x, y, batch_size=96, verbose=0) == pytest.approx(saved, abs=1e-6)


@on_three_replicas
def test_a_replica_without_examples_does_not_make_nan(strategy):
    model = train(strategy, num_examples=17)

    assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)


@on_two_replicas
def test_training_says_that_statistics_are_per_replica(strategy):
    with pytest.warns(UserWarning, match="uses the statistics of each of"):
        train(strategy)


def num_operations(strategy, num_layers):
    """Returns how many operations layers and their gradient have, in the graph of all replicas."""
    with strategy.scope():
        normalize = [keras.layers.BatchNormalization(synchronized=True) for _ in range(num_layers)]
        for layer in normalize:
            layer.build((None, 4))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for layer in normalize:
                y = layer(y, training=True)
        return tape.gradient(y, x)

    @tf.function
    def run(x):
        return replica_run.run(strategy, step, batches.shares_of(x, strategy)).outputs

    return len(run.get_concrete_function(tf.zeros((8, 4))).graph.get_operations())


def test_a_synchronized_layer_has_few_operations():
    """The first step takes as long as its graph is large."""
    of_layer = {}
    for name in ("one device", "2 replicas"):
        strategy = strategies.get(name)
        of_layer[name] = num_operations(strategy, 4) - num_operations(strategy, 3)

    assert of_layer["2 replicas"] <= 2 * of_layer["one device"]


@on_two_replicas
def test_evaluation_says_nothing_of_training(strategy):
    with strategy.scope():
        model = models.normalized()
    model.layers[1].synchronized = False

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(*examples(16), verbose=0)
