"""What a train_step does inside of functions of its own is done for the whole batch, too."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import named
from tests.plain import check_as_plain
from tests.strategies import on_three_replicas
from tests.warned import warned_by

rng = np.random.default_rng(4)
X = rng.normal(size=(37, 6)).astype("float32")  # The last of batches of 12 has one example.
Y = (2 * X[:, :1] + rng.normal(size=(37, 1))).astype("float32")


class Base(keras.Model):
    def take(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        return loss, tape.gradient(loss, self.trainable_variables)

    def clip(self, gradients):
        # Longer than those of the first steps.
        limit = 2.0 / (1.0 + tf.cast(self.optimizer.iterations.value, tf.float32))
        return tf.clip_by_global_norm(gradients, limit)[0]

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.trainable_variables)


class TakesInside(Base):
    @tf.function
    def gradients(self, x, y):
        return self.take(x, y)

    def train_step(self, data):
        loss, gradients = self.gradients(*data)
        self.apply(self.clip(gradients))
        return {"error": loss}


class ClipsInside(Base):
    @tf.function(reduce_retracing=True)
    def gradients(self, x, y):
        loss, gradients = self.take(x, y)
        if tf.linalg.global_norm(gradients) > 1.0:  # Python that AutoGraph converts.
            gradients = [each * 0.5 for each in gradients]
        return loss, gradients

    def train_step(self, data):
        loss, gradients = self.gradients(*data)
        self.apply(gradients)
        return {"error": loss}


class AppliesInside(Base):
    @tf.function
    def update(self, gradients):
        self.apply(self.clip(gradients))

    @tf.function
    def run(self, x, y):
        loss, gradients = self.take(x, y)
        self.update(gradients)
        return loss

    def train_step(self, data):
        return {"error": self.run(*data)}


class MadeInside(Base):
    """Makes a function of what has no name, and no source that is looked for."""

    def train_step(self, data):
        x, y = data
        take = tf.function(lambda: self.take(x, y))
        loss, gradients = take()
        self.apply(self.clip(gradients))
        return {"error": loss}


class KeepsSignature(Base):
    """Has a function that takes tensors of one kind only, which stays a graph of its own."""

    def train_step(self, data):
        x, y = data
        loss, gradients = self.take(x, y)
        self.apply([self.halve(each) for each in gradients])
        return {"error": loss}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def halve(self, values):
        return values / 2


MODELS = {
    each.__name__: each
    for each in (TakesInside, ClipsInside, AppliesInside, MadeInside, KeepsSignature)
}


def make(model_class, **arguments):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, "tanh")(inputs)
    model = model_class(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.05), **arguments)
    return model


def fit(model):
    return model.fit(X, Y, batch_size=12, epochs=2, verbose=0).history


@on_three_replicas
@pytest.mark.parametrize("model_class", named(MODELS, exhaustive={"MadeInside"}))
def test_as_on_one_device(strategy, model_class):
    check_as_plain(strategy, lambda: make(model_class), fit)


@on_three_replicas
def test_operation_by_operation(strategy):
    check_as_plain(strategy, lambda: make(AppliesInside, run_eagerly=True), fit)


class TakesApart(Base):
    """Takes its gradients where a signature keeps the function as it is."""

    @tf.function(
        input_signature=[tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32)]
    )
    def gradients(self, x, y):
        return self.take(x, y)

    def train_step(self, data):
        loss, gradients = self.gradients(*data)
        self.apply([tf.sign(each) for each in gradients])
        return {"error": loss}


@on_three_replicas
def test_what_is_made_of_gradients_that_have_not_met_is_named(strategy):
    with strategy.scope():
        model = make(TakesApart)

    (message,) = warned_by(lambda: fit(model))

    assert message.startswith("The gradient over 3 replicas is not the one")
    assert "`tf.function` with an `input_signature`" in message


def test_elsewhere_functions_are_what_they_are():
    @tf.function
    def double(x):
        return 2 * x, tf.executing_eagerly() or tf.inside_function()

    assert double(tf.constant(2.0))[1]
    assert double.experimental_get_tracing_count() == 1
