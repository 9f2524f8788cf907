"""Steps on workers, whose order is the coordinator's; here on one that computes at once."""

import keras
import numpy as np
import pytest

from kerasdist.training.parameter_servers.step_function import WorkerStepFunction

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1])


def make_model(strategy, **arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse", **arguments)
    return model


def make_step(model):
    return WorkerStepFunction(model, model.test_step, returns_metrics=True, weighs_loss=False)


def test_examples_are_counted_from_the_restart_on(worker_in_process):
    step = make_step(make_model(worker_in_process))

    step(iter([BATCH, BATCH]))
    assert int(step.num_examples) == 10

    step.restart()
    step(iter([BATCH]))
    assert int(step.num_examples) == 5


def test_logs_are_those_of_one_device(worker_in_process):
    model = make_model(worker_in_process)
    step = make_step(model)

    logs = dict(step(iter([BATCH])))

    model.reset_metrics()
    assert logs["loss"] == pytest.approx(model.test_on_batch(*BATCH), rel=1e-6)


def test_gradients_cannot_be_accumulated_by_the_optimizer(worker_in_process):
    model = make_model(
        worker_in_process, optimizer=keras.optimizers.SGD(gradient_accumulation_steps=3)
    )

    with pytest.raises(ValueError, match="Received: gradient_accumulation_steps=3"):
        make_step(model)
