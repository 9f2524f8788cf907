"""A step as one device makes it, beside the step of `fit`."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import keras_threads
from kerasdist.training.trial import undo, whole_step
from tests.strategies import each_strategy

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1] + 1)


def make_model(strategy=None):
    keras.utils.set_random_seed(4)
    scope = strategy.scope() if strategy else tf.name_scope("")
    with scope:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@each_strategy
@pytest.mark.parametrize("run", [whole_step.run_whole, whole_step.run_shares])
def test_the_whole_and_the_shares_train_as_plain_keras(strategy, run):
    plain, model = make_model(), make_model(strategy)
    loss = plain.train_on_batch(*BATCH)

    logs = run(model, BATCH)

    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@each_strategy
def test_what_a_step_changes_is_put_back(strategy):
    model = make_model(strategy)
    model.train_on_batch(*BATCH)
    state = [variable.numpy() for variable in variables_of(model)]

    with pytest.raises(KeyError), undo.state_kept(model):
        whole_step.run_whole(model, BATCH)
        raise KeyError

    for variable, value in zip(variables_of(model), state, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


class Own(keras.Model):
    """Makes its slots in the first step, draws numbers without a seed, and counts in Python."""

    def __init__(self):
        super().__init__()
        self.top = keras.layers.Dense(1)
        self.optimizers = {"own": keras.optimizers.Adam(0.1)}
        self.left_out = keras.metrics.Mean(name="left_out")
        self.count = 0
        self(BATCH[0])

    @property
    def metrics(self):
        return []

    def call(self, x):
        return self.top(x)

    def train_step(self, data):
        x, y = data
        self.count += 1
        noise = keras.random.normal(tf.shape(y)) + random.random() + np.random.rand()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y + noise))
        self.left_out.update_state(loss)
        variables = self.trainable_variables
        self.optimizers["own"].apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@each_strategy
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_what_a_first_step_makes_and_draws_is_put_back(strategy, is_known, run_eagerly):
    keras.utils.set_random_seed(4)
    if is_known:
        keras.random.normal(())
    with strategy.scope():
        model = Own()
        model.compile(run_eagerly=run_eagerly)
    drawn = drawn_next()
    with undo.state_kept(model):
        whole_step.run_whole(model, BATCH)
        assert model.optimizers["own"].iterations.numpy() == 1

    assert drawn_next() == drawn
    assert model.count == 0
    optimizer = model.optimizers["own"]
    for variable in [*optimizer.variables, *model.left_out.variables]:
        if variable is not optimizer.learning_rate:
            np.testing.assert_array_equal(variable.numpy(), 0, err_msg=variable.path)


def drawn_next():
    """Returns what the generators would draw, and leaves them as they are."""
    of_keras = keras_threads.known_global_seed_generator()
    of_python = random.Random()
    of_python.setstate(random.getstate())
    of_numpy = np.random.RandomState()
    of_numpy.set_state(np.random.get_state())
    state = None if of_keras is None else of_keras.state.numpy().tolist()
    return state, of_python.random(), of_numpy.rand()


def variables_of(model):
    return [*model.variables, *model.metrics_variables, *model.optimizer.variables]
