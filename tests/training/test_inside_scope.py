"""`fit` and its siblings inside `with strategy.scope():`, as Keras' own guide calls them."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests.strategies import (
    each_cluster,
    each_kind_of_strategy,
    each_strategy,
    run_on_workers,
)

X = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


class Counting(keras.callbacks.Callback):
    """Makes variables of its own inside `fit`."""

    def on_train_begin(self, logs=None):
        self.steps = tf.Variable(0)
        self.keras_steps = keras.Variable(0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps.assign_add(1)
        self.keras_steps.assign_add(1.0)


def run_inside_scope(strategy, folder) -> dict:
    keras.utils.set_random_seed(1)
    counting = Counting()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        history = model.fit(
            X,
            Y,
            batch_size=8,
            epochs=2,
            shuffle=False,
            validation_data=(X, Y),
            callbacks=[counting],
        ).history
        numbers = {
            **history,
            "evaluate": model.evaluate(X, Y),
            "predict": model.predict(X),
            "train_on_batch": model.train_on_batch(X, Y),
            "test_on_batch": model.test_on_batch(X, Y),
            "predict_on_batch": np.array(model.predict_on_batch(X)),
            "counted": [
                int(keras.ops.convert_to_numpy(counting.steps)),
                float(counting.keras_steps),
            ],
        }
        model.save(f"{folder}/model.keras")
        model.save_weights(f"{folder}/model.weights.h5")
    return numbers


@functools.cache
def truth(folder) -> dict:
    return run_inside_scope(None, folder)


def check_equal_to_plain(numbers, folder):
    expected = truth(folder)
    assert numbers.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(numbers[name], value, atol=1e-5, err_msg=name)


@each_strategy
def test_everything_inside_the_scope_equals_plain_keras(strategy, tmp_path):
    check_equal_to_plain(run_inside_scope(strategy, tmp_path), tmp_path)


@pytest.mark.exhaustive  # The parity table has fits in the scope there.
@each_cluster
def test_everything_inside_the_scope_equals_plain_keras_over_workers(workers, tmp_path):
    run = functools.partial(run_inside_scope, folder=tmp_path)

    for numbers in run_on_workers(run, workers):
        check_equal_to_plain(numbers, tmp_path)


@each_strategy
def test_callbacks_of_ours_inside_the_scope(strategy):
    average, losses = callbacks.MovingAverage(0.5), callbacks.LossAverages(0.5)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(X, Y, verbose=0, callbacks=[average, losses]).history
        with average.applied(model):
            model.evaluate(X, Y, verbose=0)

    assert history.keys() == {"loss", "loss (raw)"}


class ClearSession(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        keras.utils.clear_session()


def train_in_loop(scope):
    found = []
    with scope:
        for units in (2, 3):
            keras.utils.clear_session()
            keras.utils.set_random_seed(units)
            model = keras.Sequential([keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            found.append(model.fit(X, Y, shuffle=False, callbacks=[ClearSession()]).history["loss"])
        found.append(tf.distribute.get_strategy())
    return found, tf.distribute.has_strategy(), tf.Variable(1.0)


@each_kind_of_strategy
def test_clear_session_leaves_the_scope_that_is_entered(strategy):
    truth, *_ = train_in_loop(contextlib.nullcontext())

    (*losses, inside), is_inside, variable = train_in_loop(strategy.scope())

    np.testing.assert_allclose(losses, truth[:-1], atol=1e-5)
    assert inside is strategy
    assert not is_inside
    assert not isinstance(variable, tf.distribute.DistributedValues)
