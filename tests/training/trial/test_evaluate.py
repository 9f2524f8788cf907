"""What `evaluate` gives and is not what one device gives is named, before its first step."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kerasdist
from kerasdist.private import trial_adapter
from tests.plain import check_as_plain
from tests.strategies import (
    on_three_replicas,
    on_two_replicas,
    on_workers,
    run_on_workers,
)
from tests.warned import warned_by

RNG = np.random.default_rng(8)
X = RNG.normal(size=(28, 3)).astype("float32")
Y = RNG.normal(size=(28, 2)).astype("float32")


class Returns(keras.Model):
    """A model whose test_step returns what `log` makes of the errors, and results of metrics."""

    def __init__(self, log):
        super().__init__()
        self.dense, self.log, self.num_steps = layers.Dense(2), log, 0
        self.error = keras.metrics.RootMeanSquaredError(name="error")
        self.seen = keras.Variable(0.0, trainable=False)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, y = data
        errors = y - self(x, training=False)
        self.error.update_state(y, y + errors)
        self.num_steps += 1
        self.seen.assign_add(1.0)
        return {"error": self.error.result(), **self.log(errors)}


class Deviates(layers.Layer):
    """Adds a column with the deviation of the batch."""

    def call(self, x):
        return ops.concatenate([x, ops.full_like(x[:, :1], ops.mean(ops.std(x, axis=0)))], axis=-1)


def make_returns(log):
    model = Returns(log)
    model.compile("sgd", "mse")
    model.build((None, 3))
    return model


def make_net(*others, loss="mse"):
    model = keras.Sequential([keras.Input((3,)), *others, layers.Dense(2)])
    model.compile("sgd", loss, metrics=["mae"])
    return model


def no_means(errors):
    return {
        "rmse": ops.sqrt(ops.mean(errors**2)),
        "parts": {"max": ops.max(ops.abs(errors)), "mean": ops.mean(errors)},
        "size": ops.shape(errors)[0],
    }


def means(errors):
    return {
        "mse": ops.mean(errors**2),
        "rmse": ops.sqrt(kerasdist.global_mean(errors**2)),
        "by_output": ops.mean(errors, axis=0),
    }


def squares(y, predictions):
    return ops.mean((y - predictions) ** 2, axis=-1)


def divided(y, predictions):
    return squares(y, predictions) / tf.distribute.get_strategy().num_replicas_in_sync


def warnings_of(strategy, make, run) -> list[str]:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
    return warned_by(lambda: run(model))


def evaluate(model):
    for _ in range(2):
        model.evaluate(X, Y, batch_size=14, verbose=0)


def validate(model):
    data = X, Y
    model.fit(*data, batch_size=14, epochs=2, shuffle=False, verbose=0, validation_data=data)


@on_two_replicas
@pytest.mark.parametrize("run", [evaluate, validate])
def test_what_is_no_mean_is_named_once_with_the_remedy(strategy, run):
    (message,) = warnings_of(strategy, lambda: make_returns(no_means), run)

    assert "`evaluate` gives as 'max', 'rmse', 'size' is not" in message
    assert "tf.sqrt(kerasdist.global_mean(errors**2))" in message


@on_two_replicas
def test_a_loss_that_is_divided_by_the_number_of_replicas_sees_one(strategy, capsys):
    assert warnings_of(strategy, lambda: make_net(loss=divided), evaluate) == []

    assert "Loss: 'divided' of the model" in capsys.readouterr().err


@on_two_replicas
def test_layers_are_looked_at(strategy):
    (message,) = warnings_of(strategy, lambda: make_net(Deviates()), evaluate)

    assert "`evaluate` gives as 'loss' is not what it is on one device" in message


@on_two_replicas
def test_what_the_step_that_trains_was_told_of_is_not_said_again(strategy):
    (message,) = warnings_of(strategy, lambda: make_net(Deviates()), validate)

    assert "The gradient over" in message


@on_two_replicas
@pytest.mark.parametrize(
    "make",
    [
        lambda: make_returns(means),
        lambda: make_net(layers.Lambda(ops.tanh), layers.Dropout(0.5), loss=squares),
    ],
    ids=["own step", "own parts"],
)
def test_means_and_results_of_metrics_are_no_news(strategy, make):
    assert warnings_of(strategy, make, evaluate) == []


@on_two_replicas
def test_models_of_stock_parts_are_not_tried(strategy, monkeypatch):
    monkeypatch.delattr(trial_adapter, "alike_draws")

    assert warnings_of(strategy, lambda: make_net(layers.Dropout(0.5)), evaluate) == []


@on_three_replicas
def test_it_leaves_no_trace(strategy):
    counts = []

    def run(model):
        model.run_eagerly = True
        results = model.evaluate(X, Y, batch_size=14, verbose=0, return_dict=True)
        counts.append(model.num_steps)
        return results

    check_as_plain(strategy, lambda: make_returns(means), run)
    assert counts == [2, 2 * strategy.num_replicas_in_sync]


def failing_on_three(errors):
    # Of 7 or 15 examples, the share of the last replica; of 24 that of each.
    if tf.executing_eagerly() and errors.shape[0] in (3, 6, 12):
        raise ValueError("no three examples")
    return {"gap": ops.mean(ops.abs(errors))}


def failing_if_eager(errors):
    if tf.executing_eagerly():
        raise ValueError("no examples by themselves")
    return {"gap": ops.mean(ops.abs(errors))}


@pytest.mark.exhaustive
@on_workers
def test_all_workers_find_the_same(workers):
    outcomes = run_on_workers(find_on_workers, workers)

    assert len(outcomes) == 2
    for (named,), (repeated,), (not_checked,) in outcomes:
        assert "`evaluate` gives as 'max', 'rmse', 'size' is not" in named
        assert "fails with a part of the batch, and not with all of it" in repeated
        assert "Could not check that" in not_checked


def find_on_workers(strategy):
    """Returns the warnings where a log is no mean, and where a part or all cannot be tried."""
    named = warnings_of(strategy, lambda: make_returns(no_means), evaluate)

    def run(model):
        model.evaluate(X[:24], Y[:24], batch_size=24, verbose=0)

    failing = (failing_on_three, failing_if_eager)
    return named, *(
        warnings_of(strategy, functools.partial(make_returns, each), run) for each in failing
    )
