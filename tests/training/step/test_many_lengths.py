"""Batches of many lengths are traced as often as by plain Keras, once for each replica."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tests.strategies import each_kind_of_strategy

LENGTHS = (3, 5, 3, 7, 9, 4)


class Counts(keras.Sequential):
    """Counts the traces of its step."""

    num_traces = 0

    def train_step(self, data):
        # One of the object is put back for each replica; a trial is no trace.
        type(self).num_traces += not tf.executing_eagerly()
        return super().train_step(data)


def batches():
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        yield rng.normal(size=(6, length, 2)), rng.normal(size=(6, 1))


def traces_of(scope, train):
    """Returns the traces after a first and after a second training."""
    Counts.num_traces = 0
    with scope:
        layers = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = Counts([keras.Input((None, 2)), *layers])
        model.compile("sgd", "mse")
    counts = []
    for _ in range(2):
        train(model)
        counts.append(Counts.num_traces)
    return counts


def fit(model):
    spec = (tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 1]))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(LENGTHS)))
    model.fit(dataset, shuffle=False, verbose=0)


def train_on_batches(model):
    for x, y in batches():
        model.train_on_batch(x, y)


@each_kind_of_strategy
def test_batches_of_many_lengths_are_traced_as_by_plain_keras(strategy):
    for train in (fit, train_on_batches):
        plain = traces_of(contextlib.nullcontext(), train)
        ours = traces_of(strategy.scope(), train)

        assert plain[0] > 0
        assert ours[0] <= plain[0] * strategy.num_replicas_in_sync
        assert ours[1] == ours[0]
