"""What a step logs is the number of all replicas, under whatever name the step gives it."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas, on_two_replicas

X = np.random.default_rng(3).normal(size=(21, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


class Tracked(keras.Model):
    """Logs the result of `tracker` with `logs`, a function of the model and the loss."""

    def __init__(self, logs):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="tracker")
        self._logs = logs

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.square(self(x) - y)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(losses)
        return self._logs(self, loss)

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(tf.square(self(x) - y))
        return {"tracker": self.tracker.result()}


class Graph(Tracked):
    @tf.function
    def test_step(self, data):
        return super().test_step(data)


def fit(model):
    return model.fit(X, Y, batch_size=6, epochs=2, verbose=0).history


def evaluate(model):
    return model.evaluate(X, Y, batch_size=6, verbose=0, return_dict=True)


def check(strategy, logs, kind=Tracked, run=fit, **arguments):
    def make():
        model = kind(logs)
        model(X)
        model.compile(keras.optimizers.SGD(0.1), loss=None, **arguments)
        return model

    check_as_plain(strategy, make, run)


@pytest.mark.parametrize("steps_per_execution", [3, *exhaustive(1)])
@each_strategy
def test_a_result_is_that_of_all_examples_under_any_name(strategy, steps_per_execution):
    check(
        strategy,
        lambda model, loss: {"loss": model.tracker.result()},
        steps_per_execution=steps_per_execution,
    )


@pytest.mark.parametrize("steps_per_execution", [3, *exhaustive(1)])
@pytest.mark.parametrize("kind", [Tracked, Graph])
@each_strategy
def test_evaluate(strategy, kind, steps_per_execution):
    check(strategy, None, kind, evaluate, steps_per_execution=steps_per_execution)


@on_three_replicas
@pytest.mark.filterwarnings("ignore:Using MirroredStrategy eagerly")
def test_eagerly(strategy):
    check(strategy, lambda model, loss: {"loss": model.tracker.result()}, run_eagerly=True)


@each_strategy
def test_a_loss_by_the_name_of_a_metric_is_the_loss_of_the_last_batch(strategy):
    check(strategy, lambda model, loss: {"tracker": loss})


@each_strategy
def test_a_metric_that_the_property_leaves_out(strategy):
    class Unlisted(Tracked):
        metrics = property(lambda self: [])

    check(strategy, lambda model, loss: {"loss": model.tracker.result()}, Unlisted)


@on_three_replicas
@pytest.mark.filterwarnings("ignore:What the step returns as 'root'")
def test_a_step_that_computes_with_a_result_is_told(strategy):
    with strategy.scope():
        model = Tracked(lambda model, loss: {"root": tf.sqrt(model.tracker.result())})
        model.compile(keras.optimizers.SGD(0.1))

    with pytest.warns(UserWarning, match=r"result of 'tracker', which in a step is that of one"):
        fit(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model)


class WeighedByAResult(Tracked):
    def train_step(self, data):
        self.seen = tf.sqrt(self.tracker.result())
        super().train_step(data)
        return self.get_metrics_result()


@on_two_replicas
def test_a_step_that_computes_with_a_result_before_it_changes_is_told(strategy):
    with strategy.scope():
        model = WeighedByAResult(lambda model, loss: {"loss": model.tracker.result()})
        model.compile(keras.optimizers.SGD(0.1))

    with pytest.warns(UserWarning, match=r"computes with the result of 'tracker', which in a"):
        fit(model)


@each_strategy
def test_methods_of_a_metric_are_its_own_again(strategy):
    with strategy.scope():
        model = Tracked(lambda model, loss: {"loss": model.tracker.result()})
        model.compile(keras.optimizers.SGD(0.1))

    fit(model)

    assert not {"result", "update_state", "reset_state"} & set(vars(model.tracker))


class Nested(Tracked):
    """As Keras' guide to a train_step has it: the compiled metrics give a dict."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predictions)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            elif metric is not self.tracker:
                metric.update_state(y, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


class Sum(keras.metrics.Metric):
    """Gives its variable, not the value."""

    def __init__(self):
        super().__init__(name="sum")
        self.total = self.add_variable(shape=(), initializer="zeros")

    def update_state(self, y, predictions, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y))

    def result(self):
        return self.total


@each_strategy
def test_compiled_metrics_in_a_dict_of_the_logs(strategy):
    def make():
        model = Nested(None)
        model(X)
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae", Sum()])
        return model

    check_as_plain(strategy, make, lambda model: list(fit(model).values()))


@pytest.mark.parametrize("run", [fit, evaluate])
@each_strategy
def test_a_metric_that_gives_its_variable(strategy, run):
    def make():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[Sum()])
        return model

    check_as_plain(strategy, make, run)


class CountedAfterwards(keras.Model):
    """As Keras' documentation of `compute_metrics` has it: a metric updated after the others."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.total = keras.metrics.Sum(name="total")

    def call(self, x):
        return self.dense(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.total.update_state(y_pred)
        return {**results, "total_now": self.total.result()}


@on_three_replicas
def test_a_result_from_before_the_last_update_is_that_of_all_replicas(strategy):
    def make():
        model = CountedAfterwards()
        model(X)
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model

    check_as_plain(strategy, make, lambda model: [fit(model), evaluate(model)])


class RootOfAMetric(CountedAfterwards):
    """Computes with results where Keras asks a model to, and leaves the losses to Keras."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.total.update_state(y_pred**2)
        return keras.Model.compute_metrics(self, x, y, y_pred, sample_weight)

    def get_metrics_result(self):
        return {**super().get_metrics_result(), "root": self.total.result() ** 0.5}


@on_two_replicas
def test_a_model_may_compute_with_results_in_get_metrics_result(strategy):
    roots = []

    def make():
        model = RootOfAMetric()
        model(X)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def run(model):
        see = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: roots.append(logs["root"])
        )
        model.fit(X, Y, batch_size=6, verbose=0, callbacks=[see])
        return [roots.pop() for _ in range(4)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_as_plain(strategy, make, run)


class AddsToLogs(keras.Sequential):
    """Adds a number of its own to what Keras' step returns, before those in the order of keys."""

    def train_step(self, data):
        logs = super().train_step(data)
        logs["a"] = 10.0
        return logs


@on_two_replicas
def test_a_step_may_add_to_the_logs_of_keras(strategy):
    def make():
        model = AddsToLogs([keras.Input((X.shape[1],)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model

    check_as_plain(strategy, make, fit)


class OfThisBatch(Tracked):
    """Logs results of the last batch alone, beside those of all batches."""

    def __init__(self):
        super().__init__(None)
        self.counts = keras.metrics.Sum(name="counts")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.square(self(x) - y)
            loss = tf.reduce_mean(losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return self.update(losses)

    def test_step(self, data):
        x, y = data
        return self.update(tf.square(self(x) - y))

    def update(self, losses):
        self.tracker.reset_state()
        self.tracker.update_state(losses)
        self.counts.update_state(tf.ones_like(losses))
        return {"tracker": self.tracker.result(), "counts": self.counts.result()}


def compiled_of_this_batch(**arguments):
    def make():
        model = OfThisBatch()
        model.compile("sgd", **arguments)
        return model

    return make


@on_three_replicas
@pytest.mark.parametrize("run", [fit, evaluate])
@pytest.mark.parametrize(
    "arguments", [*exhaustive({}, {"run_eagerly": True}), {"steps_per_execution": 2}]
)
def test_a_metric_that_the_step_resets_is_that_of_the_last_batch(strategy, run, arguments):
    # Which has one example, or none for two replicas.
    def run_with_rest(model):
        results = [run(model)]
        for size in (19, 20):
            results.append(model.evaluate(X[:size], Y[:size], batch_size=6, verbose=0))
        return results

    check_as_plain(strategy, compiled_of_this_batch(**arguments), run_with_rest)
