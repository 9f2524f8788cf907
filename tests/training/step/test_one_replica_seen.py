"""Programs that were written for several replicas give what they give on one device.

Where each replica has the whole batch, it is to see no other.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import exhaustive
from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import on_three_replicas, on_workers

pytestmark = pytest.mark.thorough
# The last batch of four has one example, so that two of three replicas have none.
RNG = np.random.default_rng(6)
X = RNG.normal(size=(17, 5)).astype("float32")
FIT = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


class OwnStep(keras.Model):
    """A model whose steps compute a loss from its outputs; nobody builds it before."""

    def __init__(self, reduce):
        super().__init__()
        self.dense, self.reduce = keras.layers.Dense(3, "tanh"), reduce

    def call(self, x):
        return self.dense(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = self.reduce(self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}

    def test_step(self, x):
        return {"loss": self.reduce(self(x))}


def squares(outputs):
    return tf.reduce_mean(tf.square(outputs - 0.5), axis=-1)


def average_of_tensorflow(outputs):
    return tf.nn.compute_average_loss(squares(outputs))


def divided(outputs):
    return tf.reduce_mean(squares(outputs)) / tf.distribute.get_strategy().num_replicas_in_sync


def summed_up(outputs):
    number = tf.distribute.get_strategy().num_replicas_in_sync
    context: Any = tf.distribute.get_replica_context()
    return context.all_reduce("SUM", tf.reduce_mean(squares(outputs)) / number)


def likeness(outputs):
    labels = tf.eye(tf.shape(outputs)[0])
    scores = tf.matmul(outputs, outputs, transpose_b=True)
    return tf.nn.softmax_cross_entropy_with_logits(labels, 3 * scores)


def of_pairs(outputs):
    return tf.reduce_mean(likeness(outputs))


def of_gathered_pairs(outputs):
    context: Any = tf.distribute.get_replica_context()
    outputs = context.all_gather(outputs, axis=0)
    return tf.reduce_mean(likeness(outputs))


def concatenated(outputs):
    """As SimCLR does: each replica's outputs in their place among zeros, and a sum of all."""
    context: Any = tf.distribute.get_replica_context()
    number = context.num_replicas_in_sync
    places = tf.one_hot(context.replica_id_in_sync_group, number)
    parts = context.all_reduce("SUM", places[:, None, None] * outputs[None])
    return tf.reshape(parts, [-1, outputs.shape[-1]])


def of_concatenated_pairs(outputs):
    return tf.reduce_mean(likeness(concatenated(outputs)))


def fit_and_evaluate(model):
    history = model.fit(X, validation_data=X[:7], **FIT).history
    return history, model.evaluate(X, batch_size=4, verbose=0)


LOSSES = [
    average_of_tensorflow,
    of_gathered_pairs,
    of_pairs,
    *exhaustive(divided, summed_up, of_concatenated_pairs),
]


@on_three_replicas
@pytest.mark.filterwarnings("ignore:.*not what it is on one device", "ignore:The gradient over")
@pytest.mark.filterwarnings("ignore:.*not the same on the 3", "ignore:The step fails with a part")
@pytest.mark.parametrize("reduce", LOSSES, ids=lambda each: each.__name__)
def test_a_step_from_its_first_call_on(strategy, reduce):
    def make():
        model = OwnStep(reduce)
        model.compile(keras.optimizers.SGD(0.2))
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


def compiled():
    def loss(y, outputs):
        return tf.reduce_mean(likeness(concatenated(outputs)))

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, "tanh")])
    model.compile(keras.optimizers.SGD(0.2), loss)
    return model


@on_three_replicas
def test_a_loss_that_is_compiled(strategy):
    def run(model):
        x = X[:12]  # Of even shares, as such programs want.
        fit = {**FIT, "batch_size": 6}
        return model.fit(x, x, **fit).history, model.evaluate(x, x, batch_size=6, verbose=0)

    check_as_plain(strategy, compiled, run)


class SummingStep(OwnStep):
    """Adds up the gradients of replicas by itself, and clips them in the first steps alone."""

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = self.reduce(self(x, training=True))
        context: Any = tf.distribute.get_replica_context()
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(context.all_reduce("SUM", gradients), 0.1)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@on_three_replicas
@pytest.mark.filterwarnings("ignore:The gradient over .*of what an `all_reduce` returns")
def test_a_sum_of_gradients_that_the_first_step_clips(strategy):
    def make():
        model = SummingStep(lambda outputs: tf.reduce_mean(squares(outputs)))
        model.compile(keras.optimizers.SGD(0.5))
        return model

    def run(model):
        return model.fit(X[:1].repeat(17, axis=0), **{**FIT, "epochs": 4}).history

    check_as_plain(strategy, make, run)


class Codebook(keras.layers.Layer):
    """Follows the sums of what is next to each code, which replicas add up, as Sonnet's does."""

    def build(self, input_shape):
        shape = (4, input_shape[-1])
        self.codes = self.add_weight(shape=shape, initializer="normal", trainable=False)
        self.sizes = self.add_weight(shape=(4,), initializer="ones", trainable=False)

    def call(self, x, training=False):
        distances = tf.reduce_sum(tf.square(x[:, None] - self.codes[None]), axis=-1)
        nearest = tf.one_hot(tf.argmin(distances, axis=1), 4)
        if training:
            sums = [tf.reduce_sum(nearest, axis=0), tf.matmul(nearest, x, transpose_a=True)]
            if (context := tf.distribute.get_replica_context()) is not None:
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
            self.sizes.assign(0.8 * self.sizes + 0.2 * sums[0])
            self.codes.assign(0.8 * self.codes + 0.2 * tf.stop_gradient(sums[1]))
        return x + tf.stop_gradient(tf.matmul(nearest, self.codes) - x)


def quantizing():
    layers = [keras.Input((5,)), keras.layers.Dense(3, "tanh"), Codebook(), keras.layers.Dense(5)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit_quantizing(model):
    return model.fit(X, X, **FIT).history


@on_three_replicas
def test_a_sum_of_the_programs_own_leaves_out_replicas_without_examples(strategy):
    check_as_plain(strategy, quantizing, fit_quantizing)


def fit_in_scope(strategy):
    return outcome_of(strategy.scope(), quantizing, fit_quantizing)


@on_workers
def test_a_sum_over_workers_does_so_too(workers):
    check_workers(workers, fit_in_scope)
