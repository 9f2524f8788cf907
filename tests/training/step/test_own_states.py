"""What a train_step assigns itself: a counter, a teacher's weights. Alike on all replicas.

A replica without examples computes with one of another replica, and takes part.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import StopOnNonFinite
from kerasdist.private import scopes
from tests.plain import check_as_plain
from tests.strategies import each_strategy

# The last batch has one example.
NUM_EXAMPLES = 33


class Distiller(keras.Model):
    """Learns from the averages of its own weights, the more the longer it has learned."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = (_net() for _ in range(2))
        self.teacher.trainable = False
        self.teacher.set_weights(self.student.get_weights())
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self.student(x)
            distance = tf.reduce_mean((outputs - self.teacher(x)) ** 2)
            loss = tf.reduce_mean((outputs - y) ** 2) + self.step * distance
        variables = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for average, variable in zip(self.teacher.weights, self.student.weights, strict=True):
            average.assign(0.9 * average + 0.1 * variable)
        self.step.assign_add(0.1)
        return {"loss": loss}


def _net():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def data():
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def make_distiller():
    model = Distiller()
    model.compile(keras.optimizers.SGD(0.05))
    return model


FIT = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}


@each_strategy
@pytest.mark.parametrize("guard", [(), (StopOnNonFinite,)], ids=["alone", "may be discarded"])
def test_replicas_without_examples_take_part(strategy, guard):
    def fit(model):
        is_ours = scopes.strategy_of(model) is strategy
        callbacks = [each() for each in guard if is_ours]
        history = model.fit(*data(), callbacks=callbacks, **FIT).history
        states = [model.step, *model.teacher.weights]
        copies = [strategy.experimental_local_results(each.value) for each in states]
        copies = [[each.numpy() for each in of_state] for of_state in copies]
        for of_state in copies:
            np.testing.assert_array_equal(of_state, [of_state[0]] * len(of_state))
        return history

    check_as_plain(strategy, make_distiller, fit)


class Judged(keras.Model):
    """Makes its layers and its metrics in the first step."""

    def __init__(self):
        super().__init__()
        self.normalize = keras.layers.BatchNormalization(synchronized=True)
        self.head = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x, training=False):
        return self.head(self.normalize(x, training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=outputs)
        variables = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return self.compute_metrics(None, y, outputs, None)


@each_strategy
def test_examples_that_do_not_count_do_not_where_all_is_made_in_the_first_step(strategy):
    def make():
        model = Judged()
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
        return model

    def fit(model):
        x, y = data()
        return [model.fit(x, y**2, **FIT).history, model.evaluate(x, y, verbose=0)]

    check_as_plain(strategy, make, fit)


@each_strategy
def test_nor_in_an_evaluation_that_makes_the_metrics(strategy):
    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model = OwnTestStep(model.inputs, model.outputs)
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    check_as_plain(strategy, make, lambda model: model.evaluate(*data(), batch_size=8, verbose=0))


class OwnTestStep(keras.Model):
    def test_step(self, data):
        x, y = data
        outputs = self(x)
        self.compute_loss(y=y, y_pred=outputs)
        return self.compute_metrics(None, y, outputs, None)
