"""Callbacks of the user's own on several workers: what they write, add to the logs and stop."""

import csv
import functools
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from kerasdist.parity import models
from tests import strategies
from tests.event_files import numbers
from tests.strategies import on_workers, run_on_workers
from tests.warned import warned_by

X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


class Best(keras.callbacks.ModelCheckpoint):
    """Saves by an error that it evaluates by itself, goes back to the best, and on slower."""

    def on_epoch_end(self, epoch, logs: Any = None):
        logs["score"] = self.model.evaluate(X[:20], Y[:20], verbose=0)[0]
        best = self.best
        super().on_epoch_end(epoch, logs)
        self.model.load_weights(self.filepath)  # Is there, for all of them.
        if self.best == best:
            self.model.optimizer.learning_rate = 0.2


class Rows(keras.callbacks.CSVLogger):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, {**(logs or {}), "twice": 2 * epoch})


class Rates(keras.callbacks.TensorBoard):
    def on_epoch_end(self, epoch, logs: Any = None):
        logs["rate"] = float(self.model.optimizer.learning_rate.numpy())
        super().on_epoch_end(epoch, logs)


class Stop(keras.callbacks.Callback):
    """Stops in a hook, in its call of a number."""

    def __init__(self, hook, number):
        super().__init__()
        setattr(self, hook, self.stop)
        self.remaining = number

    def stop(self, epoch=0, logs=None):
        self.model.stop_training = self.remaining == 0
        self.remaining -= 1


class SetsOwnWeights(keras.callbacks.Callback):
    """Sets other weights on each worker, when all epochs are compared already."""

    def on_train_end(self, logs=None):
        index = self.model.distribute_strategy.deployment.cluster.task.index
        self.model.layers[-1].bias.assign([1.0 + index])


def regression(strategy, rate=0.1):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        return models.regression(keras.optimizers.Adam(rate))


def fit(model, callbacks, **arguments) -> dict:
    history = model.fit(
        X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks, **arguments
    ).history
    weights = {f"weight {index}": np.array(each) for index, each in enumerate(model.get_weights())}
    return {**history, **weights, "steps": int(model.optimizer.iterations.numpy())}


def write(folder, strategy) -> dict:
    weights = folder / "new" / "best.weights.h5"
    best = {"monitor": "score", "mode": "min", "save_best_only": True, "save_weights_only": True}
    callbacks = [
        Best(weights, **best),
        Rows(folder / "log.csv"),
        Rates(folder / "events", write_graph=False),
        keras.callbacks.EarlyStopping("score", mode="min", patience=2, restore_best_weights=True),
    ]
    return fit(regression(strategy, rate=0.6), callbacks, epochs=8)


def stop(strategy) -> dict:
    """Returns what two `fit` give that are stopped before the first step of an epoch."""
    hooks = {"on_train_begin": 0, "on_epoch_begin": 1}
    return {
        (hook, name): value
        for hook, number in hooks.items()
        for name, value in fit(regression(strategy), [Stop(hook, number)], epochs=4).items()
    }


def drift_at_the_end(strategy) -> list[str]:
    return warned_by(lambda: fit(regression(strategy), [SetsOwnWeights()], epochs=1))


def run_all(strategy, folder) -> dict:
    return {
        "write": write(folder, strategy),
        "stop": stop(strategy),
        "drift": drift_at_the_end(strategy),
    }


@functools.cache
def outcomes(workers):
    """Returns the folder that the workers wrote to, and what each of them returned."""
    folder = Path(tempfile.mkdtemp())
    return folder, run_on_workers(functools.partial(run_all, folder=folder), workers)


def check(outcome, truth):
    assert outcome.keys() == truth.keys()
    for name, value in truth.items():
        np.testing.assert_allclose(outcome[name], value, atol=1e-4, err_msg=str(name))


@pytest.mark.exhaustive
@on_workers
def test_subclasses_of_callbacks_that_write_do_on_every_worker_what_they_do_on_one(
    workers, tmp_path
):
    truth = write(tmp_path, strategies.get("one device"))
    assert min(truth["rate"]) < max(truth["rate"])
    assert len(truth["loss"]) < 8  # They have stopped.
    folder, of_workers = outcomes(workers)

    for outcome in of_workers:
        check(outcome["write"], truth)
    events = folder / "events"
    assert numbers(events).keys() == numbers(tmp_path / "events").keys()  # None is there twice.
    assert len(list(events.rglob("events.out.*"))) == 1
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert sorted(map(str, files))[1:] == ["log.csv", "new/best.weights.h5"]
    with open(folder / "log.csv") as file:
        rows = [row["twice"] for row in csv.DictReader(file)]
    assert rows == [str(2 * epoch) for epoch in range(len(truth["loss"]))]


@on_workers
def test_a_stop_at_the_beginning_of_an_epoch_comes_after_its_first_step(workers):
    truth = stop(strategies.get("one device"))
    assert [truth[hook, "steps"] for hook in ("on_train_begin", "on_epoch_begin")] == [1, 8 + 1]

    for outcome in outcomes(workers)[1]:
        check(outcome["stop"], truth)


@on_workers
def test_workers_that_drift_apart_when_training_ends_are_told(workers):
    for outcome in outcomes(workers)[1]:
        (warning,) = outcome["drift"]
        assert "at the end of `fit` they differ in" in warning
