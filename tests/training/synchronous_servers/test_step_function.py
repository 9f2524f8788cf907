"""Synchronous workers of parameter servers: `fit` gives the weights of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests import strategies

X = np.random.default_rng(0).normal(size=(26, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
IDS = np.random.default_rng(1).integers(0, 20, size=(26, 4))
WEIGHTS = np.random.default_rng(2).integers(0, 4, size=26).astype("float32")
EXAMPLES_OF_UPDATE = 8


def dense(optimizer, **arguments):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh", kernel_regularizer="l2"),
            keras.layers.Dense(1, kernel_constraint="unit_norm"),
        ]
    )
    model.compile(**{"optimizer": optimizer, "loss": "mse", "metrics": ["mae"], **arguments})
    return model


def embedding(optimizer):
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            keras.layers.Embedding(20, 6),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, loss="mse")
    return model


class Centralized(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        centralized = [gradient - tf.reduce_mean(gradient) for gradient in grads]
        return super().apply(centralized, trainable_variables)


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def with_own_step():
    model = OwnStep()
    model.compile("adam")
    return model


def weighted():
    return dense("adam", loss=keras.losses.MeanSquaredError("mean_with_sample_weight"))


def divided():
    first, others = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)
    choose = keras.optimizers.MultiOptimizer(lambda each: first if 3 in each.shape else others)
    return dense(choose)


# What makes a model, and what it is trained with besides.
PROGRAMS = {
    "Adam": (lambda: dense(keras.optimizers.Adam(0.05)), {}),
    "clipped": (lambda: dense(keras.optimizers.SGD(0.1, global_clipnorm=0.5)), {}),
    "averaged": (
        lambda: dense(keras.optimizers.AdamW(0.05, use_ema=True, ema_overwrite_frequency=3)),
        {},
    ),
    "accumulated": (
        lambda: dense(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)),
        {},
    ),
    "accumulated by a callback": (
        lambda: dense("adam"),
        {"callbacks": lambda: [callbacks.GradientAccumulation(2)]},
    ),
    "MultiOptimizer": (divided, {}),
    "an optimizer of its own": (lambda: dense(Centralized(0.1)), {}),
    "a step of its own": (with_own_step, {}),
    "several updates in a call": (lambda: dense("adam", steps_per_execution=3), {}),
    "weighted": (weighted, {"sample_weight": lambda: WEIGHTS}),
    "rows": (lambda: embedding(keras.optimizers.Adam(0.05)), {"x": lambda: IDS}),
    "validated": (lambda: dense("adam"), {"validation_data": lambda: (X[:9], Y[:9])}),
}


def train(strategy, name, batch_size):
    """Returns the weights, the updates and the logs of two epochs of 26 examples."""
    make, arguments = PROGRAMS[name]
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
    given = {"x": X, "y": Y, **{key: value() for key, value in arguments.items()}}
    history = model.fit(**given, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), int(model.optimizer.iterations), history.history


def train_all(strategy, batch_size):
    return {name: train(strategy, name, batch_size) for name in PROGRAMS}


def train_with_batches_of_workers(strategy):
    return train_all(strategy, EXAMPLES_OF_UPDATE // 2)


@pytest.mark.processes
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
def test_weights_and_logs_are_those_of_one_device(workers):
    (found,) = strategies.run_on_workers(train_with_batches_of_workers, workers)

    expected = train_all(strategies.get("one device"), EXAMPLES_OF_UPDATE)
    for name, (weights, num_updates, logs) in expected.items():
        assert found[name][1] == num_updates, name
        for weight, other in zip(found[name][0], weights, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6, err_msg=name)
        for key in logs:
            np.testing.assert_allclose(found[name][2][key], logs[key], rtol=1e-5, err_msg=name)
