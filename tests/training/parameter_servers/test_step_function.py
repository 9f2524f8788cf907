"""Steps on workers, whose order is the coordinator's; here on one that computes at once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import coordinator_adapter
from kerasdist.training.parameter_servers import step_function
from kerasdist.training.parameter_servers.data_source import WorkerDataSource
from kerasdist.training.parameter_servers.epoch_iterator import Calls
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


def test_what_is_missing_of_a_lost_call_is_made_before_metrics_are_reset(
    worker_in_process, monkeypatch
):
    model = make_model(worker_in_process)
    step, trace = make_step(model), lambda coordinator, run, args: run.get_concrete_function(*args)
    monkeypatch.setattr(coordinator_adapter, "concrete_function", trace)
    data = WorkerDataSource(
        tf.data.Dataset.from_tensors(BATCH).repeat(2), worker_in_process, is_python=True
    )
    calls = Calls(data.start(), num_workers=1, first=0, num_steps=2)

    with monkeypatch.context() as lost:
        lost.setattr(coordinator_adapter, "schedule_once", lose)
        step._start(calls.take())
    step._start(calls.take())
    step.wait()

    assert int(step.num_examples) == 10
    assert step.finish() is None  # The epoch is over, and nothing was made twice.
    assert (int(step.num_examples), calls.num_done) == (10, 2)


def lose(coordinator, function, args, attempt):
    attempt.is_lost = True


def test_data_that_a_worker_cannot_make_is_told_by_its_own_error(worker_in_process, monkeypatch):
    step = make_step(make_model(worker_in_process))
    wrapper, *_ = coordinator_adapter.INPUT_ERRORS

    def fail(*_):
        raise wrapper(tf.errors.NotFoundError(None, None, "no such file"))

    monkeypatch.setattr(coordinator_adapter, "schedule_once", fail)
    coordinator = worker_in_process.deployment.remote.coordinator
    monkeypatch.setattr(coordinator, "join", fail, raising=False)

    # pytest warns of an error in the thread that forgets what was scheduled, which is an error.
    with pytest.raises(tf.errors.NotFoundError, match=r"^no such file$"):
        step(iter([BATCH]))


def test_gradients_cannot_be_accumulated_by_the_optimizer(worker_in_process):
    model = make_model(
        worker_in_process, optimizer=keras.optimizers.SGD(gradient_accumulation_steps=3)
    )

    with pytest.raises(ValueError, match="Received: gradient_accumulation_steps=3"):
        step_function.check(model)
