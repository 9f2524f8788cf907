"""A metric of the user's own is what one device gives, whatever it does with its examples."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import custom_parts, variable_adapter
from tests.cases import exhaustive, named
from tests.plain import check_as_plain
from tests.strategies import on_three_replicas

pytestmark = pytest.mark.thorough

# The last batch has one example, so that two of three replicas have none.
X = np.random.default_rng(7).normal(size=(17, 3)).astype("float32")
Y = np.tanh(X.cumsum(axis=1))[:, :2]
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


class Last(keras.metrics.Metric):
    """What `of` makes of the last update, above a state that does not begin at 0."""

    def __init__(self, of, name="last"):
        super().__init__(name=name)
        self.of = of
        self.last = self.add_weight(shape=(), initializer="ones", name="last")

    def update_state(self, *arguments, sample_weight=None):
        self.last.assign(self.last / 2 + self.of(*arguments))

    def result(self):
        return self.last * 1  # Not the variable itself, which Keras would read later.

    def reset_state(self):
        super().reset_state()
        self.last.assign(1.0)


class AsTrackers(keras.metrics.Mean):
    """A mean under another name, as programs track their losses."""


def largest(y, predictions):
    return keras.ops.max(keras.ops.abs(y - predictions))


def nearest(y, predictions):
    """Whether the prediction of each example is nearer to its label than to all others'."""
    distances = keras.ops.sum((predictions[:, None] - y[None]) ** 2, axis=-1)
    return keras.ops.equal(keras.ops.argmin(distances, axis=1), keras.ops.arange(len_of(y)))


def len_of(tensor):
    return keras.ops.shape(tensor)[0]


def net(*, inputs=3, kind=keras.Model):
    features = keras.Input((inputs,))
    return kind(features, keras.layers.Dense(2)(features))


def compiled_with(metrics, **arguments):
    def make():
        model = net()
        model.compile("sgd", "mse", metrics=metrics(), **arguments)
        return model

    return make


def fit_and_evaluate(model):
    history = model.fit(X, Y, validation_data=(X[:5], Y[:5]), **FIT).history
    return history, model.evaluate(X, Y, batch_size=6, verbose=0, return_dict=True)


METRICS = {
    "a number per batch": lambda: [largest],
    "examples compared": lambda: [nearest],
    "a class": lambda: [Last(largest)],
    "Keras' loss": lambda: [keras.losses.Dice()],
    # Over the examples: of one there is none.
    "Keras' correlation": lambda: [keras.metrics.PearsonCorrelation(axis=0)],
    "beside Keras' own": lambda: ["mae", largest, keras.metrics.R2Score()],
}
# The numbers and the rows of which others have, too.
LIKE_OTHERS = {"a number per batch", "a class", "Keras' loss"}


@on_three_replicas
@pytest.mark.parametrize("metrics", named(METRICS, exhaustive=LIKE_OTHERS))
def test_a_compiled_metric_sees_all_examples(metrics, strategy):
    check_as_plain(strategy, compiled_with(metrics), fit_and_evaluate)


@on_three_replicas
@pytest.mark.parametrize(
    "arguments", [*exhaustive({"run_eagerly": True}), {"steps_per_execution": 2}], ids=str
)
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
def test_in_steps_of_every_kind(arguments, strategy):
    metrics = compiled_with(lambda: [largest, Last(largest)], **arguments)

    check_as_plain(strategy, metrics, fit_and_evaluate)


class Tracking(keras.Model):
    """Updates metrics in a train_step, with numbers, examples and what is neither."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = AsTrackers(name="tracker")
        self.of_loss = Last(lambda loss: loss, name="of_loss")
        self.of_counts = Last(self.count, name="of_counts")

    @staticmethod
    def count(words, kernel, flags):
        """Of ragged rows, a matrix that is no batch, and booleans."""
        words = tf.reduce_max(tf.reduce_sum(words, axis=1))
        return words + tf.reduce_sum(kernel) + tf.reduce_max(tf.cast(flags, tf.float32))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = tf.reduce_mean((predictions - y) ** 2)
        kernel = tf.convert_to_tensor(self.trainable_variables[0])
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        self.tracker.update_state(loss)
        self.of_loss.update_state(loss)
        words = tf.RaggedTensor.from_tensor(tf.abs(x), padding=-1)
        self.of_counts.update_state(words, kernel, predictions[:, 0] > 0)
        metrics = (self.tracker, self.of_loss, self.of_counts)
        return {metric.name: metric.result() for metric in metrics}


@on_three_replicas
def test_a_metric_of_a_train_step_sees_all_examples(strategy):
    def make():
        model = net(kind=Tracking)
        model.compile("sgd")
        return model

    check_as_plain(strategy, make, lambda model: model.fit(X, Y, **FIT).history)


@on_three_replicas
def test_a_mask_goes_with_the_predictions(strategy):
    words = np.random.default_rng(1).integers(0, 4, (17, 5))

    def right(y, predictions):
        is_word = keras.ops.cast(predictions._keras_mask, "float32")
        return keras.ops.cast(y == 1, "float32") * is_word / keras.ops.sum(is_word)

    def make():
        inputs = keras.Input((5,), dtype="int32")
        embedded = keras.layers.Embedding(4, 2, mask_zero=True)(inputs)
        model = keras.Model(inputs, keras.layers.LSTM(2, return_sequences=True)(embedded))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=[right])
        return model

    check_as_plain(strategy, make, lambda model: model.fit(words, words % 2, **FIT).history)


class Weighing(keras.Model):
    """Weighs its loss with the result of a metric, which is that of all examples."""

    def __init__(self, *args):
        super().__init__(*args)
        self.largest = Last(largest, name="largest")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            self.largest.update_state(y, predictions)
            loss = tf.reduce_mean((predictions - y) ** 2) * self.largest.result()
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@on_three_replicas
def test_a_step_may_compute_with_its_result(strategy):
    def make():
        model = net(kind=Weighing)
        model.compile("sgd")
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The step computes with the result")
        check_as_plain(strategy, make, lambda model: model.fit(X, Y, **FIT).history)


class Judging(keras.Model):
    """Updates a metric where replicas cannot meet, or with what they cannot send."""

    def __init__(self, *args, sees="condition", **kwargs):
        super().__init__(*args, **kwargs)
        self.total = Total(name="total")
        self.sees = sees

    def train_step(self, data):
        logs = super().train_step(data)
        _, y = data
        if self.sees == "condition":
            tf.cond(self.optimizer.iterations.value > 1, lambda: self._see(y), lambda: False)
        else:
            self.total.update_state(tf.strings.as_string(y))
        return {**logs, "total": self.total.result()}

    def _see(self, y):
        self.total.update_state(y)
        return True


class Total(keras.metrics.Sum):
    """A sum, of texts, too."""

    def update_state(self, values, sample_weight=None):
        if values.dtype == tf.string:
            values = tf.strings.to_number(values)
        return super().update_state(values)


@on_three_replicas
@pytest.mark.parametrize(
    ("sees", "reason"), [("condition", "inside of a condition"), ("text", "of string")]
)
def test_where_they_cannot_it_is_a_sum_and_says_so(sees, reason, strategy):
    def make():
        model = net(kind=lambda *args: Judging(*args, sees=sees))
        model.compile("sgd", "mse")
        return model

    with pytest.warns(UserWarning, match=f"The metric 'total' is updated .*{reason}"):
        check_as_plain(strategy, make, lambda model: model.fit(X, Y, **FIT).history)


class Counting(keras.Model):
    """Counts with a method of the metric that Keras does not know."""

    def __init__(self, *args):
        super().__init__(*args)
        self.counter = Counter(name="counter")

    def train_step(self, data):
        logs = super().train_step(data)
        self.counter.count(data[1])
        return {**logs, "counter": self.counter.result()}


class Counter(Last):
    """A number of examples."""

    def __init__(self, name):
        super().__init__(None, name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def count(self, y):
        self.total.assign_add(tf.cast(tf.shape(y)[0], tf.float32))

    def result(self):
        return self.total


@on_three_replicas
def test_one_that_is_updated_by_another_method_is_a_sum(strategy):
    def make():
        model = net(kind=Counting)
        model.compile("sgd", "mse")
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


def test_keras_own_metrics_send_nothing():
    model = compiled_with(
        lambda: ["mae", "accuracy", keras.metrics.AUC(), keras.metrics.mean_squared_error]
    )()
    model.fit(X, Y, **FIT)

    assert custom_parts.custom_metrics_of(model) == []


@on_three_replicas
def test_a_state_is_that_of_the_first_replica(strategy):
    with strategy.scope():
        model = compiled_with(lambda: [Last(largest)])()
    model.fit(X, Y, **FIT)

    (metric,) = custom_parts.custom_metrics_of(model)
    (variable,) = (each.value for each in metric.variables)
    copies = [each.numpy() for each in strategy.experimental_local_results(variable)]
    assert variable_adapter.reads_first_replica(variable)
    np.testing.assert_array_equal(copies, [copies[0]] * len(copies))
