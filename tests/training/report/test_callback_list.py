"""Callbacks get floats in every step where they look, and cost nothing where they do not."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.report.callback_list import CallbackList
from kerasdist.training.step.step_logs import StepLogs
from tests import strategies
from tests.event_files import scalars
from tests.strategies import each_replicated_strategy, each_strategy

X = np.random.default_rng(5).normal(size=(30, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
NUM_STEPS = 4


class Reader(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.train, self.test = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.train.append(dict(logs or {})["loss"])

    def on_test_batch_end(self, batch, logs=None):
        self.test.append(dict(logs or {})["loss"])


class Counter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(batch)


class OlderCounter(Counter):
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end

    def on_batch_end(self, batch, logs=None):
        self.batches.append(batch)


class OlderBeginCounter(OlderCounter):
    on_batch_end = keras.callbacks.Callback.on_batch_end

    def on_batch_begin(self, batch, logs=None):
        self.batches.append(batch)


@pytest.fixture
def reads(monkeypatch):
    """One entry for every time that the metrics are read."""
    seen, read = [], StepLogs.read
    monkeypatch.setattr(StepLogs, "read", lambda self: seen.append(1) or read(self))
    return seen


def make_model(strategy=None):
    keras.utils.set_random_seed(2)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def fit(model, *callbacks, **arguments):
    return model.fit(
        X, Y, batch_size=8, shuffle=False, callbacks=list(callbacks), **{"verbose": 0} | arguments
    )


@each_strategy
def test_without_batch_callbacks_metrics_are_read_at_the_end_of_an_epoch(strategy, reads):
    fit(make_model(strategy), epochs=3)

    assert len(reads) == 3


@each_replicated_strategy
def test_a_callback_that_does_not_read_costs_no_read(strategy, reads):
    counter = Counter()

    fit(make_model(strategy), counter)

    assert counter.batches == list(range(NUM_STEPS))
    assert len(reads) == 1


@each_strategy
def test_a_callback_that_reads_gets_the_floats_of_one_device(strategy):
    truth, reader = Reader(), Reader()

    fit(make_model(), truth, epochs=2, validation_data=(X[:12], Y[:12]))
    fit(make_model(strategy), reader, epochs=2, validation_data=(X[:12], Y[:12]))

    assert {type(value) for value in reader.train + reader.test} == {float}
    assert len(reader.train) == 2 * NUM_STEPS
    assert reader.train == pytest.approx(truth.train, abs=1e-5)
    assert reader.test == pytest.approx(truth.test, abs=1e-5)


def test_logs_that_were_kept_hold_the_numbers_of_their_step():
    truth, kept = Reader(), []
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: kept.append(logs))

    fit(make_model(), truth)
    fit(make_model(strategies.get("2 replicas")), keep)

    assert [logs["loss"] for logs in kept] == pytest.approx(truth.train, abs=1e-5)


def test_several_readers_share_one_read(reads):
    fit(make_model(strategies.get("2 replicas")), Reader(), Reader())

    assert len(reads) == NUM_STEPS


@pytest.mark.parametrize(("update_freq", "num_reads"), [("epoch", 2), (2, 4)])
def test_tensorboard_writes_what_it_writes_on_one_device(tmp_path, reads, update_freq, num_reads):
    def tensorboard(name):
        return keras.callbacks.TensorBoard(tmp_path / name, update_freq=update_freq)

    # A TensorBoard that was interrupted leaves its writer and its condition in the process.
    with tf.summary.create_file_writer(str(tmp_path)).as_default(), tf.summary.record_if(True):
        fit(make_model(), tensorboard("stock"), epochs=2)
        fit(make_model(strategies.get("2 replicas")), tensorboard("ours"), epochs=2)

    assert scalars(tmp_path / "ours") == scalars(tmp_path / "stock") != []
    assert len(reads) == num_reads


@pytest.mark.parametrize("kind", [Counter, OlderCounter, OlderBeginCounter])
def test_every_spelling_of_a_batch_hook_is_called(kind):
    counter = kind()

    fit(make_model(strategies.get("2 replicas")), counter)

    assert counter.batches == list(range(NUM_STEPS))


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end"])
def test_lambda_callback_is_called(hook):
    batches = []
    callback = keras.callbacks.LambdaCallback(**{hook: lambda batch, logs: batches.append(batch)})

    fit(make_model(strategies.get("2 replicas")), callback)

    assert batches == list(range(NUM_STEPS))


def test_callbacks_are_called_in_list_order():
    order = []
    first, second = (
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, name=name: order.append(name)
        )
        for name in ("first", "second")
    )

    fit(make_model(strategies.get("2 replicas")), first, second)

    assert order == ["first", "second"] * NUM_STEPS


def test_evaluate_and_predict_call_their_hooks():
    order = []
    callback = keras.callbacks.LambdaCallback(
        on_test_batch_begin=lambda batch, logs: order.append("test begin"),
        on_test_batch_end=lambda batch, logs: order.append("test end"),
        on_predict_batch_end=lambda batch, logs: order.append("predict end"),
    )
    model = make_model(strategies.get("2 replicas"))

    model.evaluate(X, Y, batch_size=30, verbose=0, callbacks=[callback])
    model.predict(X, batch_size=30, verbose=0, callbacks=[callback])

    assert order == ["test begin", "test end", "predict end"]


def test_a_callback_may_stop_training_in_mid_epoch():
    model = make_model(strategies.get("2 replicas"))

    def stop(batch, logs):
        model.stop_training = batch == 1

    fit(model, keras.callbacks.LambdaCallback(on_train_batch_end=stop), epochs=2)

    assert int(model.optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("knows_the_model", [True, False])
def test_the_users_own_callback_list_works(knows_the_model):
    model, truth, reader = make_model(strategies.get("2 replicas")), Reader(), Reader()
    arguments = {"model": model} if knows_the_model else {}
    callbacks = keras.callbacks.CallbackList([reader], add_history=True, **arguments)
    callbacks.set_model(model)

    history = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    fit(make_model(), truth)

    assert isinstance(callbacks, CallbackList) == knows_the_model
    assert reader.train == pytest.approx(truth.train, abs=1e-5)
    assert history.history["loss"] == pytest.approx(truth.train[-1:], abs=1e-5)


def test_a_tensorboard_of_the_users_own_reads_the_logs(tmp_path):
    seen = []

    class OwnTensorBoard(keras.callbacks.TensorBoard):
        def on_train_batch_end(self, batch, logs: Any = None):
            seen.append(logs["loss"])

    fit(make_model(strategies.get("one device")), OwnTensorBoard(tmp_path))

    assert len(seen) == NUM_STEPS
