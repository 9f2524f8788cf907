"""An update in two halves: gradients of batches, and one step with their mean; in one process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.data import batches
from kerasdist.training.hooks.graph_function import graph_function
from kerasdist.training.parameter_servers.local_counts import LocalCounts
from kerasdist.training.step.model_step import ModelStep
from kerasdist.training.synchronous_servers.inseparable import InseparableError
from kerasdist.training.synchronous_servers.staged_update import StagedUpdate

X = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
WEIGHTS = np.array([1, 2, 0, 4, 3, 1, 1, 5, 1, 0, 2], "float32")
# Batches of unequal size, of which an update is made; and another update of the rest.
UPDATES = [[slice(0, 4), slice(4, 5)], [slice(5, 8), slice(8, 11)]]


def make_model(strategy, **arguments):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, kernel_regularizer="l2"),
                keras.layers.Dense(1, kernel_constraint="unit_norm"),
            ]
        )
        arguments = {name: make() for name, make in arguments.items()}
        model.compile(**{"optimizer": "adam", "loss": "mse", **arguments})
        model.optimizer.build(model.trainable_variables)
    return model


def train_in_halves(strategy, model, data, step=None):
    """Makes the updates as two workers and a chief would."""
    num_examples: Any = tf.Variable(0, dtype="int64", trainable=False)
    update = StagedUpdate(model, LocalCounts(model.metrics_variables, num_examples))
    model_step = ModelStep(
        model,
        model.train_step if step is None else step,
        returns_metrics=True,
        weighs_loss=False,
        make_delivery=update.delivery,
    )

    @graph_function
    def stage(key, batch):
        def run(counter):
            model_step.run(batch, batches.shares_of(batch, strategy), checks=[], counter=counter)

        staged = update.stage(key, run)
        with tf.control_dependencies(staged):
            return tf.constant(0)

    make = graph_function(update.make)
    for parts in UPDATES:
        keys = [tf.constant(part.start, tf.int64) for part in parts]
        for key, part in zip(keys, parts, strict=True):
            stage(key, tuple(tf.constant(each[part]) for each in data))
        make(keys)
    assert update.contributions.count() == 0
    assert int(num_examples.numpy()) == len(X)


def train_on_one_device(model, data):
    for first, second in UPDATES:
        model.train_on_batch(*(each[first.start : second.stop] for each in data))


def overwritten():
    return keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        ((X, Y), {}),
        ((X, Y), {"optimizer": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5)}),
        ((X, Y), {"optimizer": lambda: keras.optimizers.AdamW(0.1, use_ema=True)}),
        ((X, Y), {"optimizer": overwritten}),
        ((X, Y), {"optimizer": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)}),
        ((X, Y), {"optimizer": scaled}),
        (
            (X, Y, WEIGHTS),
            {"loss": lambda: keras.losses.MeanSquaredError("mean_with_sample_weight")},
        ),
    ],
    ids=["Adam", "clipped", "averaged", "overwritten", "accumulated", "scaled", "weighted"],
)
def test_the_weights_are_those_of_one_device(worker_in_process, data, arguments):
    model, expected = (make_model(worker_in_process, **arguments) for _ in range(2))

    train_in_halves(worker_in_process, model, data)
    train_on_one_device(expected, data)

    for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)
    assert int(model.optimizer.iterations) == int(expected.optimizer.iterations)


def test_losses_with_different_divisors_are_refused(worker_in_process):
    model = make_model(worker_in_process, loss=lambda: keras.losses.MeanSquaredError("sum"))

    with pytest.raises(InseparableError, match="losses are divided by 1"):
        train_in_halves(worker_in_process, model, (X, Y))


def test_a_step_with_two_updates_is_refused(worker_in_process):
    model = make_model(worker_in_process)

    def step(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(data[0], training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        for _ in range(2):
            model.optimizer.apply(gradients, model.trainable_variables)
        return {}

    with pytest.raises(InseparableError, match=r"calls `optimizer\.apply` twice"):
        train_in_halves(worker_in_process, model, (X, Y), step)


def test_a_step_without_an_update_is_refused(worker_in_process):
    with pytest.raises(InseparableError, match=r"calls no `optimizer\.apply`"):
        train_in_halves(worker_in_process, make_model(worker_in_process), (X, Y), lambda data: {})
