"""Ctrl-C stops between two steps and leaves a model that trains on."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies import each_kind_of_strategy

BATCH_SIZE = 8
X = np.random.default_rng(5).normal(size=(8 * BATCH_SIZE, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make_model(strategy, loss="mse", steps_per_execution=1):
    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(optimizer, loss, steps_per_execution=steps_per_execution)
    return model


def fit(model, start=0, stop=8, **arguments):
    """Trains the steps from `start` to `stop`."""
    batches = slice(start * BATCH_SIZE, stop * BATCH_SIZE)
    model.fit(X[batches], Y[batches], batch_size=BATCH_SIZE, shuffle=False, verbose=0, **arguments)


def check_equals_one_device(model, num_steps):
    truth = make_model(tf.distribute.get_strategy())
    fit(truth, stop=num_steps)
    assert int(model.optimizer.iterations.numpy()) == num_steps
    for value, expected in zip(model.get_weights(), truth.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


@each_kind_of_strategy
def test_interrupt_between_steps_keeps_the_finished_ones(strategy):
    def interrupt(batch, logs):
        if batch == 2:
            signal.raise_signal(signal.SIGINT)

    model = make_model(strategy)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)])

    check_equals_one_device(model, num_steps=3)
    fit(model, start=3)
    check_equals_one_device(model, num_steps=8)


@each_kind_of_strategy
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_interrupt_within_a_step_lets_the_call_finish(strategy, steps_per_execution):
    due = []

    def interrupt():
        if due:
            due.clear()
            os.kill(os.getpid(), signal.SIGINT)

    def loss(y, predictions):
        tf.py_function(interrupt, [], [])
        return tf.square(y - predictions)

    model = make_model(strategy, loss, steps_per_execution)
    # After step 2 the next step to run is interrupted.
    arm = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: due.append(1) if batch == 1 else None
    )
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[arm])

    num_steps = 2 + steps_per_execution
    check_equals_one_device(model, num_steps)
    fit(model, start=num_steps)
    check_equals_one_device(model, num_steps=8)
