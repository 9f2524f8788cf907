"""Workers that prepare their parts of the batches alone train as one device does."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import FirstStepProof
from kerasdist.parity import models
from kerasdist.support import memory
from tests import plain
from tests.strategies import each_worker_deployment, run_on_workers
from tests.warned import warned_by

X = np.random.default_rng(1).normal(size=(45, 6)).astype("float32")


def halve(x):
    return x / 2, tf.tanh(tf.reduce_sum(x, keepdims=True))


def add_noise(x, y):
    seed = tf.cast(1000 * tf.abs(x[:2]), tf.int32)
    return x + 0.1 * tf.random.stateless_normal([6], seed), y


def mapped():
    return tf.data.Dataset.from_tensor_slices(X).shuffle(20).map(halve)


def fit_shuffled(model):
    data = mapped().map(add_noise, num_parallel_calls=2).batch(16).prefetch(1)
    history = model.fit(data, epochs=2, validation_data=mapped().batch(7), verbose=0).history
    return history, model.fit(data, verbose=0).history, model.evaluate(data, verbose=0)


def fit_repeated(model):
    data = mapped().repeat().batch(8, drop_remainder=True)
    return model.fit(data, epochs=2, steps_per_epoch=4, verbose=0).history


def fit_of_unknown_length(model):
    data = tf.data.Dataset.from_tensor_slices(X).filter(lambda x: x[0] > -0.3)
    return model.fit(data.map(halve).batch(7), epochs=2, verbose=0).history


def fit_cached(model):
    data = mapped().cache().batch(8)
    return [model.fit(data, epochs=2, verbose=0).history for _ in range(2)]


def fit_less_than_an_example_each(model):
    data = tf.data.Dataset.from_tensor_slices(X[:33]).map(halve).batch(8)
    return model.fit(data, verbose=0).history


def mean_of_neighbours(y_true, y_pred):
    """Compares each example with the one before, so that a replica needs all of them."""
    return tf.reduce_mean(tf.square(y_pred[1:] - y_pred[:-1] - y_true[1:]))


class Neighbours(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = mean_of_neighbours(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def neighbours():
    inputs = keras.Input((6,))
    model = Neighbours(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1))
    return model


def fit_neighbours(model):
    return model.fit(mapped().batch(16), epochs=2, verbose=0).history


def labelled(x):
    return x, tf.cast(tf.range(3) == tf.argmax(x[:3], output_type=tf.int32), tf.float32)


def fit_weighed(model):
    data = tf.data.Dataset.from_tensor_slices(X).map(labelled).batch(8)
    return model.fit(data, epochs=2, class_weight={0: 3.0, 2: 0.5}, verbose=0).history


def with_weight(x):
    return *halve(x), tf.abs(x[0])


def fit_weights(model):
    data = tf.data.Dataset.from_tensor_slices(X).map(with_weight).batch(8)
    return model.fit(data, epochs=2, verbose=0).history


def softmax():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=["accuracy"])
    return model


def regression_in_executions():
    return models.regression(steps_per_execution=3)


def regression_eagerly():
    return models.regression(run_eagerly=True)


PROGRAMS = {
    "shuffled": (models.regression, fit_shuffled),
    "in executions": (regression_in_executions, fit_shuffled),
    "repeated": (models.regression, fit_repeated),
    "of unknown length": (models.regression, fit_of_unknown_length),
    "cached": (models.regression, fit_cached),
    "a last example": (models.regression, fit_less_than_an_example_each),
    "eagerly": (regression_eagerly, fit_repeated),
    "weights of classes": (softmax, fit_weighed),
    "weights of examples": (models.regression, fit_weights),
}


def check_proof(strategy):
    proof = FirstStepProof()
    with strategy.scope():
        model = models.regression()
    model.fit(mapped().batch(16), verbose=0, callbacks=[proof])
    assert proof.comparison is not None and proof.comparison.is_equal


def check_all(strategy) -> set[str]:
    """Checks all programs; returns what was said of the data."""
    for make, fit in PROGRAMS.values():
        plain.check_as_plain(strategy, make, fit, tolerance=1e-6)
    check_proof(strategy)
    return {line for line in memory.PROCESS.said if line.startswith("Data: ")}


@pytest.mark.processes
@each_worker_deployment
def test_a_training_is_that_of_one_device(workers):
    chief, *_ = run_on_workers(check_all, workers)

    assert chief == {"Data: every worker reads all of it and prepares its part of each batch."}


def check_whole(strategy) -> list[str]:
    """Checks a program of which each replica needs whole batches; returns its warnings."""
    return warned_by(lambda: plain.check_as_plain(strategy, neighbours, fit_neighbours))


@pytest.mark.processes
@each_worker_deployment
def test_workers_send_their_rows_where_a_replica_needs_the_whole_batch(workers):
    for warned in run_on_workers(check_whole, workers):
        assert any("the whole batch" in text for text in warned)


def noted(folder, strategy):
    """Trains with a `map` that notes what it is called with."""
    path = folder / str(strategy.deployment.cluster.worker_index)

    def note(x):
        tf.print(x[0], output_stream=f"file://{path}")
        return halve(x)

    with strategy.scope():
        model = models.regression()
    data = tf.data.Dataset.from_tensor_slices(X).shuffle(20).map(note).batch(8).prefetch(1)
    model.fit(data, epochs=2, verbose=0)
    return len(path.read_text().split())


@pytest.mark.processes
def test_each_example_is_prepared_once_in_an_epoch(tmp_path):
    counts = run_on_workers(functools.partial(noted, tmp_path), "2 workers")

    # Of 5 batches of 8 and one of 5. Keras makes one more iterator, which reads nothing.
    assert counts == [2 * 23, 2 * 22]
