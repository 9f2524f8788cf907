"""Callbacks get floats in every step where they look, and cost nothing where they do not."""

import contextlib
import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import Every, OnChief, Throughput
from kerasdist.training.report import callback_list
from kerasdist.training.report.callback_list import CallbackList
from kerasdist.training.step.step_logs import StepLogs
from tests import strategies
from tests.event_files import scalars
from tests.strategies import each_kind_of_strategy, each_strategy, on_two_replicas

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


@each_kind_of_strategy
def test_without_batch_callbacks_metrics_are_read_at_the_end_of_an_epoch(strategy, reads):
    fit(make_model(strategy), epochs=3)

    assert len(reads) == 3


@on_two_replicas
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


CHANGES_OF_METRICS = {
    "evaluate": lambda model: model.evaluate(X[:5], Y[:5], verbose=0),
    "test_on_batch": lambda model: model.test_on_batch(X[:5], Y[:5]),
    "train_on_batch": lambda model: model.train_on_batch(X[:5], Y[:5]),
    "fit": lambda model: model.fit(X[:5], Y[:5], verbose=0),
    "reset_metrics": lambda model: model.reset_metrics(),
}


class Changing(Reader):
    """Changes the metrics, in each step in another way, and reads the logs only then."""

    def __init__(self, *changes):
        super().__init__()
        self.changes = itertools.cycle(changes)

    def on_train_batch_end(self, batch, logs=None):
        CHANGES_OF_METRICS[next(self.changes)](self.model)
        super().on_train_batch_end(batch, logs)


@each_strategy
def test_what_a_callback_does_to_the_metrics_changes_no_logs_of_its_step(strategy):
    def logs_of(model):
        changing, reader = Changing(*CHANGES_OF_METRICS), Reader()
        history = fit(model, changing, reader, epochs=2).history
        assert changing.train == reader.train
        return [*reader.train, *history["loss"]]

    assert logs_of(make_model(strategy)) == pytest.approx(logs_of(make_model()), abs=1e-5)


@each_strategy
def test_logs_of_evaluate_survive_a_change_of_the_metrics_too(strategy):
    class Resetting(Reader):
        def on_test_batch_end(self, batch, logs=None):
            self.model.reset_metrics()
            super().on_test_batch_end(batch, logs)

    truth, resetting = Resetting(), Resetting()
    make_model().evaluate(X, Y, batch_size=8, verbose=0, callbacks=[truth])
    make_model(strategy).evaluate(X, Y, batch_size=8, verbose=0, callbacks=[resetting])

    assert resetting.test == pytest.approx(truth.test, abs=1e-5)


@each_strategy
def test_an_epoch_ends_with_the_logs_of_an_own_step_before_a_callback_evaluates(strategy):
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data) | {"steps": self.optimizer.iterations}

    def history_of(scope):
        keras.utils.set_random_seed(2)
        with scope:
            inputs = keras.Input((3,))
            model = Own(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse")
        return fit(model, Changing("evaluate")).history

    truth, history = map(history_of, (contextlib.nullcontext(), strategy.scope()))

    assert history["steps"] == truth["steps"]
    assert history["loss"] == pytest.approx(truth["loss"], abs=1e-5)


def test_a_callback_leaves_the_methods_of_the_model_as_they_were():
    model = make_model(strategies.get("2 replicas"))
    own = model.__dict__["reset_metrics"] = lambda: calls.append(1)
    calls = []

    fit(model, Changing("reset_metrics"))

    assert vars(model)["reset_metrics"] is own
    assert len(calls) == NUM_STEPS + 1
    assert not {"compile", "train_on_batch", "test_on_batch"} & set(vars(model))


class Writer(keras.callbacks.Callback):
    """Writes into the logs of every step."""

    def on_train_batch_end(self, batch, logs: Any = None):
        logs["rate"] = batch + 0.5
        logs["loss"] *= 2

    def on_test_batch_end(self, batch, logs: Any = None):
        logs["loss"] *= 3


@each_strategy
def test_what_a_callback_writes_into_the_logs_is_seen_by_those_after_it(strategy):
    def logs_of(model):
        before, after, rates = Reader(), Reader(), []
        noting = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: rates.append(logs.get("rate"))
        )
        history = fit(
            model, before, Writer(), after, noting, epochs=2, validation_data=(X[:12], Y[:12])
        ).history
        assert rates == [0.5, 1.5, 2.5, 3.5] * 2
        assert sorted(history) == ["loss", "val_loss"]
        return [*before.train, *after.train, *before.test, *after.test, *history["loss"]]

    assert logs_of(make_model(strategy)) == pytest.approx(logs_of(make_model()), abs=1e-5)


def test_several_readers_share_one_read(reads):
    fit(make_model(strategies.get("2 replicas")), Reader(), Reader())

    assert len(reads) == NUM_STEPS


@pytest.mark.parametrize(("update_freq", "num_reads"), [("epoch", 2), (2, 4)])
def test_tensorboard_writes_what_it_writes_on_one_device(tmp_path, reads, update_freq, num_reads):
    def tensorboard(name):
        return keras.callbacks.TensorBoard(tmp_path / name, update_freq=update_freq)

    # A TensorBoard that was interrupted leaves its writer in the process.
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        fit(make_model(), tensorboard("stock"), epochs=2)
        fit(make_model(strategies.get("2 replicas")), tensorboard("ours"), epochs=2)

    assert scalars(tmp_path / "ours") == scalars(tmp_path / "stock") != []
    assert len(reads) == num_reads


@pytest.mark.parametrize("callbacks", [Throughput, [Throughput]])
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_a_class_is_answered_with_how_to_make_one(method, callbacks):
    model = make_model(strategies.get("2 replicas"))

    with pytest.raises(TypeError, match=r"the class Throughput. Write Throughput\(\.\.\.\)."):
        getattr(model, method)(X, Y, callbacks=callbacks, verbose=0)


@pytest.mark.parametrize("kind", [Counter, OlderCounter, OlderBeginCounter])
def test_every_spelling_of_a_batch_hook_is_called(kind):
    counter = kind()

    fit(make_model(strategies.get("2 replicas")), counter)

    assert counter.batches == list(range(NUM_STEPS))


class LateCounter(Counter):
    """Assigns its batch hook when another hook is called, as a TqdmCallback does."""

    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end

    def __init__(self, assigned_in):
        super().__init__()
        setattr(self, assigned_in, self.assign)

    def assign(self, *_, **__):
        self.on_batch_end = self.on_test_batch_end = self.note

    def note(self, batch, logs=None):
        self.batches.append(batch)


@pytest.mark.parametrize("assigned_in", ["on_train_begin", "on_epoch_begin"])
@pytest.mark.parametrize("wrap", [lambda callback: callback, OnChief])
def test_a_batch_hook_that_another_hook_assigns_is_called(assigned_in, wrap):
    counter = LateCounter(assigned_in)

    fit(make_model(strategies.get("2 replicas")), wrap(counter), epochs=2)

    assert counter.batches == list(range(NUM_STEPS)) * 2


def test_every_sees_a_batch_hook_that_another_hook_assigns():
    counter = LateCounter("on_epoch_begin")

    fit(make_model(strategies.get("2 replicas")), Every(OnChief(counter), steps=2))

    assert counter.batches == list(range(NUM_STEPS))[1::2]


def test_a_batch_hook_that_the_beginning_of_evaluate_assigns_is_called():
    counter = LateCounter("on_test_begin")

    make_model(strategies.get("2 replicas")).evaluate(X, Y, verbose=0, callbacks=[counter])

    assert counter.batches == [0]


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


@pytest.mark.parametrize(
    "wrap",
    [lambda callback: callback, lambda callback: OnChief(Every(callback, steps=2))],
    ids=["itself", "in wrappers"],
)
def test_a_tensorboard_without_its_package_is_refused_before_the_first_step(
    wrap, tmp_path, monkeypatch
):
    monkeypatch.setattr(callback_list.importlib.util, "find_spec", lambda name: None)
    model = make_model(strategies.get("one device"))

    with pytest.raises(ImportError, match=r"needs the package tensorboard, .* Or use .*Summaries"):
        fit(model, wrap(keras.callbacks.TensorBoard(tmp_path)))

    assert int(model.optimizer.iterations) == 0
