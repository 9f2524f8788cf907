"""Callbacks that look now and then, and on the chief alone."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Every, OnChief
from tests import strategies
from tests.strategies import each_kind_of_strategy

X = np.ones((20, 3), "float32")


class Looks(keras.callbacks.Callback):
    """Notes what it is called for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch, logs=None):
        assert logs is None or np.isfinite(logs["loss"])
        self.seen.append(batch)


class LooksInTheOldWay(Looks):
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end
    on_batch_end = Looks.on_train_batch_end


def fit(strategy, *callbacks, **arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **arguments)
    model.fit(X, X[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=list(callbacks))
    return model


@pytest.mark.thorough
@each_kind_of_strategy
@pytest.mark.parametrize("kind", [Looks, LooksInTheOldWay])
@pytest.mark.parametrize(
    ("steps", "num_at_once", "seen"),
    [
        (1, 1, [0, 1, 2, 3, 4, "epoch 0", 0, 1, 2, 3, 4, "epoch 1"]),
        (3, 1, [2, "epoch 0", 0, 3, "epoch 1"]),
        (5, 1, [4, "epoch 0", 4, "epoch 1"]),
        (7, 1, ["epoch 0", 1, "epoch 1"]),
        (4, 2, [3, "epoch 0", 3, "epoch 1"]),  # The third call has one step.
    ],
)
def test_every_number_of_steps(strategy, kind, steps, num_at_once, seen):
    looks = kind()

    fit(strategy, Every(looks, steps=steps), steps_per_execution=num_at_once)

    assert looks.seen == seen


def test_every_number_of_seconds():
    looks, times = Looks(), iter(range(100))

    fit(strategies.get("one device"), Every(looks, secs=4, clock=lambda: next(times)))

    assert looks.seen == [3, "epoch 0", 2, "epoch 1"]


def test_it_has_the_model_and_the_parameters_of_the_fit():
    looks = Looks()

    model = fit(strategies.get("2 replicas"), OnChief(Every(looks, steps=10)))

    assert looks.model is model
    assert looks.params == {"verbose": 0, "epochs": 2, "steps": 5}
    assert looks.seen == ["epoch 0", 4, "epoch 1"]


def test_without_a_strategy_it_does_the_same():
    looks = Looks()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    model.fit(X, X[:, :1], batch_size=4, verbose=0, callbacks=[OnChief(Every(looks, steps=2))])

    assert looks.seen == [1, 3, "epoch 0"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "Give one of `steps` and `secs`. Received: steps=None, secs=None."),
        ({"steps": 1, "secs": 1}, ValueError, "Received: steps=1, secs=1."),
        ({"steps": 0}, ValueError, "`steps` must be at least 1. Received: steps=0."),
        ({"steps": True}, TypeError, "Received: steps=True."),
        ({"secs": -1}, ValueError, "Received: secs=-1."),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error) as raised:
        Every(Looks(), **arguments)

    assert message in str(raised.value)


def looks_of_worker(strategy):
    everywhere, on_chief = Looks(), Looks()
    fit(strategy, Every(everywhere, steps=4), OnChief(Every(on_chief, steps=4)))
    return everywhere.seen, on_chief.seen


@pytest.mark.processes
def test_the_chief_alone_looks():
    seen = [3, "epoch 0", 2, "epoch 1"]

    chief, worker = strategies.run_on_workers(looks_of_worker, "2 workers")

    assert chief == (seen, seen)
    assert worker == (seen, [])
