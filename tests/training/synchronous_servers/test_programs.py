"""What a step assigns, draws and updates, on synchronous workers of parameter servers.

All programs of a cluster run one after the other, so that it is started once. The truth is one
device with the joined batches; of what each batch does by itself (plain BatchNormalization, random
numbers) it is two replicas, each with one of these batches.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import strategies

NUM_EXAMPLES = 24
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
IDS = np.random.default_rng(1).integers(0, 20, size=(NUM_EXAMPLES, 4))
WEIGHTS = np.random.default_rng(2).integers(1, 4, size=NUM_EXAMPLES).astype("float32")
# Nothing counts in one batch of a worker, and in all of an update.
NO_WEIGHTS = WEIGHTS * np.repeat([0, 1, 0, 0, 1, 1], 4)
BATCH_SIZE = 4  # Of one worker.


class Counting(keras.layers.Layer):
    """Counts its calls in a state, and in one that replicas have together."""

    def build(self, shape):
        number = {"shape": (), "dtype": "int64", "initializer": "zeros", "trainable": False}
        self.calls = self.add_weight(**number, name="calls")
        self.examples = self.add_weight(**number, name="examples", aggregation="sum")
        self.mean = self.add_weight(shape=(), trainable=False, name="mean", aggregation="mean")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1)
            self.examples.assign_add(tf.shape(x, "int64")[0])
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x))
        return x


class Noisy(keras.layers.Layer):
    """Draws from the generator of the program, that of numbers without a seed."""

    def call(self, x, training=False):
        return x + 0.1 * keras.random.normal(tf.shape(x)) if training else x


def dense(*layers, optimizer="sgd", **arguments):
    model = keras.Sequential(
        [keras.Input((3,)), *layers, keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(**{"optimizer": optimizer, "loss": "mse", "metrics": ["mae"], **arguments})
    return model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    make: Callable
    given: Callable = dict
    truth: str = "one device"


PROGRAMS = {
    "states": Program(
        make=lambda: dense(Counting(), keras.layers.SpectralNormalization(keras.layers.Dense(4)))
    ),
    "batch normalization": Program(
        make=lambda: dense(keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5)),
        truth="2 replicas",
    ),
    "random numbers": Program(
        make=lambda: dense(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1), Noisy()),
        truth="2 replicas",
    ),
    "weighted": Program(
        make=lambda: dense(
            loss=keras.losses.MeanSquaredError("mean_with_sample_weight"), weighted_metrics=["mae"]
        ),
        given=lambda: {"sample_weight": NO_WEIGHTS},
    ),
}


def train(strategy, program, batch_size):
    """Returns all variables and the logs of two epochs, by their names."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = program.make()
    history = model.fit(
        **{
            "x": X,
            "y": Y,
            "batch_size": batch_size,
            "epochs": 2,
            "shuffle": False,
            "verbose": 0,
            **program.given(),
        }
    )
    values = {f"{index} {each.path}": np.array(each) for index, each in enumerate(model.variables)}
    return values, history.history


def train_all(strategy):
    return {name: train(strategy, program, BATCH_SIZE) for name, program in PROGRAMS.items()}


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Batch normalization .* uses the statistics of each of 2")
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
def test_programs_end_as_on_one_device(workers):
    (found,) = strategies.run_on_workers(train_all, workers)

    for name, program in PROGRAMS.items():
        expected = train(strategies.get(program.truth), program, 2 * BATCH_SIZE)
        for values, others in zip(found[name], expected, strict=True):
            assert values.keys() == others.keys(), name
            for key, value in values.items():
                np.testing.assert_allclose(
                    value, others[key], rtol=1e-5, atol=1e-6, err_msg=f"{name}: {key}"
                )
