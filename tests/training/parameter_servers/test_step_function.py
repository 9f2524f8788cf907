"""Steps on workers, whose order is the coordinator's; here on one that computes at once."""

import contextlib
from typing import Any

import keras
import numpy as np
import pytest

from kerasdist.training.parameter_servers import sharded_variables
from kerasdist.training.parameter_servers.step_function import AsynchronousStep
from tests import strategies

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1])


class Worker:
    """Coordinator and watch of a worker in this process."""

    def schedule(self, function, args):
        return function(*args)

    def fetch(self, result, again=None):
        return result

    def waiting(self):
        return contextlib.nullcontext()


@pytest.fixture
def strategy(monkeypatch):
    """One device, in the place of parameter servers and a worker."""
    strategy: Any = strategies.get("one device")
    for name in ("coordinator", "watch"):
        monkeypatch.setattr(strategy, name, Worker(), raising=False)
    monkeypatch.setattr(sharded_variables, "check_placement", lambda model: None)
    return strategy


def make_model(strategy, **arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse", **arguments)
    return model


def make_step(model):
    return AsynchronousStep(model, model.test_step, returns_metrics=True, weighs_loss=False)


def test_examples_are_counted_from_the_restart_on(strategy):
    step = make_step(make_model(strategy))

    step(iter([BATCH, BATCH]))
    assert int(step.num_examples) == 10

    step.restart()
    step(iter([BATCH]))
    assert int(step.num_examples) == 5


def test_logs_are_those_of_one_device(strategy):
    model = make_model(strategy)
    step = make_step(model)

    logs = dict(step(iter([BATCH])))

    model.reset_metrics()
    assert logs["loss"] == pytest.approx(model.test_on_batch(*BATCH), rel=1e-6)


def test_gradients_cannot_be_accumulated_by_the_optimizer(strategy):
    model = make_model(strategy, optimizer=keras.optimizers.SGD(gradient_accumulation_steps=3))

    with pytest.raises(ValueError, match="Received: gradient_accumulation_steps=3"):
        make_step(model)
