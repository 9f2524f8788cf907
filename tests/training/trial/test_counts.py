"""What a step counts in Keras' metrics is compared, before the first step, with one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import exhaustive
from tests.strategies import on_three_replicas, on_two_replicas
from tests.warned import warned_by

RNG = np.random.default_rng(4)
# The last batch of ten has three.
X = RNG.normal(size=(23, 6)).astype("float32")
metrics = keras.metrics


class Counts(keras.Model):
    """A model whose steps update a metric with what `values` makes of its outputs."""

    def __init__(self, metric, values):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.metric, self.values = metric, values

    @property
    def metrics(self):
        return [self.metric]

    def call(self, x):
        return self.dense(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs - 1))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.metric.update_state(*self.values(outputs))
        return {"mean square": loss, self.metric.name: self.metric.result()}

    def test_step(self, x):
        self.metric.update_state(*self.values(self(x)))
        return {self.metric.name: self.metric.result()}


def likeness(outputs):
    return tf.matmul(outputs, outputs[:, ::-1], transpose_b=True)


def losses_of_pairs(outputs):
    """One for each example, which is compared with the others."""
    labels = tf.eye(tf.shape(outputs)[0])
    return (keras.losses.categorical_crossentropy(labels, likeness(outputs), from_logits=True),)


def positions_of_pairs(outputs):
    return tf.range(tf.shape(outputs)[0]), likeness(outputs)


def once_for_a_batch(outputs):
    return (tf.reduce_mean(tf.square(outputs)),)


def make(metric, values):
    keras.utils.set_random_seed(0)
    model = Counts(metric(), values)
    model.compile("sgd")
    model(X[:2])
    return model


@on_three_replicas
@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (metrics.Mean, losses_of_pairs),
        (metrics.SparseCategoricalAccuracy, positions_of_pairs),
        *exhaustive((metrics.Sum, once_for_a_batch)),
    ],
)
@pytest.mark.parametrize("is_trained", [True, False], ids=["after fit", "alone"])
def test_what_is_computed_from_several_examples_is_told_and_evaluated_as_on_one_device(
    strategy, metric, values, is_trained
):
    reference = make(metric, values)
    with strategy.scope():
        model = make(metric, values)
    fit = {"batch_size": 10, "shuffle": False, "verbose": 0}
    if is_trained:
        reference.fit(X, **fit)
        told = warned_by(lambda: model.fit(X, **fit))
        assert len(told) == 1
        assert told[0].startswith(f"What the metric '{model.metric.name}' counts in a step is not")

    results = []
    told = warned_by(
        lambda: results.append(model.evaluate(X, batch_size=10, verbose=0, return_dict=True))
    )

    assert len(told) == 1 and "each replica computes the whole batch" in told[0]
    expected = reference.evaluate(X, batch_size=10, verbose=0, return_dict=True)
    assert results[0] == pytest.approx(expected, rel=1e-5)


def labels_and_outputs(outputs):
    return tf.cast(outputs > 0.1, "float32"), tf.sigmoid(outputs)


def classes_and_outputs(outputs):
    return tf.argmax(outputs[:, ::-1], axis=1), outputs


def weighted_by_size(outputs):
    return tf.reduce_mean(outputs), tf.shape(outputs)[0]


def the_same_everywhere(outputs):
    return (tf.constant([1.0, 3.0]),)


@on_two_replicas
@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (metrics.AUC, labels_and_outputs),
        (metrics.Mean, weighted_by_size),
        (metrics.Mean, the_same_everywhere),
        *exhaustive(
            (metrics.SparseCategoricalAccuracy, classes_and_outputs),
            (metrics.Mean, once_for_a_batch),
            (metrics.MeanSquaredError, labels_and_outputs),
            (metrics.F1Score, labels_and_outputs),
            (metrics.Precision, labels_and_outputs),
        ),
    ],
)
def test_what_adds_up_is_no_news(strategy, metric, values):
    with strategy.scope():
        model = make(metric, values)

    assert warned_by(lambda: model.fit(X, batch_size=10, verbose=0)) == []
    assert warned_by(lambda: model.evaluate(X, batch_size=10, verbose=0)) == []
