"""The slots of an optimizer are made when plain Keras makes them, for callbacks to see."""

import os
import signal

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas

X = np.random.default_rng(5).normal(size=(12, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


def make_model(optimizer="nadam"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model, *callbacks):
    arguments = {"batch_size": 5, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    return model.fit(X, Y, **arguments).history


class RateFinder(keras.callbacks.Callback):
    """As published: the rate grows with the steps, and weights saved before them are put back."""

    def __init__(self, path):
        super().__init__()
        self.path, self.seen = path, []

    def _look(self, *_, logs=None):
        self.seen.append([self.model.optimizer.built, len(self.model.optimizer.variables)])

    def on_train_begin(self, logs=None):
        self._look()
        self.model.save_weights(self.path)

    on_epoch_begin = on_train_batch_begin = _look

    def on_train_batch_end(self, batch, logs=None):
        self._look()
        self.model.optimizer.learning_rate.assign(0.02 * (batch + 1))

    def on_train_end(self, logs=None):
        self.model.load_weights(self.path)


@each_strategy
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_callback_saves_no_slots_before_the_first_step(strategy, tmp_path):
    def run(model):
        finder = RateFinder(str(tmp_path / "initial.weights.h5"))
        fit(model, finder)
        state = [variable.numpy() for variable in model.optimizer.variables]
        return finder.seen, state, fit(model)

    check_as_plain(strategy, make_model, run)


class Builder(keras.callbacks.Callback):
    """Builds the optimizer by itself, as BackupAndRestore does."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        for variable in self.model.optimizer.variables[2:]:
            variable.assign(variable + 0.5)


@on_three_replicas
@pytest.mark.parametrize("optimizer", ["nadam", "adafactor"])
def test_a_callback_may_build_the_optimizer(strategy, optimizer):
    check_as_plain(strategy, lambda: make_model(optimizer), lambda model: fit(model, Builder()))


class Terminate(keras.callbacks.Callback):
    """Ends the process, as a cluster does, before its first step."""

    def on_train_begin(self, logs=None):
        os.kill(os.getpid(), signal.SIGTERM)


@on_three_replicas
def test_a_checkpoint_from_before_the_first_step_is_resumed(strategy, tmp_path):
    with strategy.scope():
        models = make_model(), make_model()
    with pytest.raises(SystemExit):
        fit(models[0], Checkpoint(tmp_path / "run"), Terminate())
    checkpoint = Checkpoint(tmp_path / "run")
    fit(models[1], checkpoint)

    assert checkpoint.resumed_from == str(tmp_path / "run/step-00000000")
    assert int(models[1].optimizer.iterations) == 3
