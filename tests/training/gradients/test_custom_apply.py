"""An optimizer's own way to apply gradients gets those of the whole batch, as on one device."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_kind_of_strategy, on_two_replicas

X = np.random.default_rng(2).normal(size=(96, 6)).astype("float32")


class AutoClip(keras.optimizers.SGD):
    """Clips to the median of the norms so far, which is none in the first step."""

    def __init__(self, rate):
        super().__init__(rate)
        self.norms = tf.Variable(tf.zeros(4), trainable=False)
        self.number = tf.Variable(0, trainable=False)

    def apply(self, grads, trainable_variables=None):
        self.norms[self.number % 4].assign(tf.linalg.global_norm(grads))
        self.number.assign_add(1)
        known = tf.sort(self.norms[: tf.minimum(self.number, 4)])
        clipped = [tf.clip_by_norm(grad, known[tf.size(known) // 2]) for grad in grads]
        super().apply(clipped, trainable_variables)


class Hypergradient(keras.optimizers.SGD):
    """Learns its rate from one gradient and the next."""

    def build(self, variables):
        super().build(variables)
        self.last = [self.add_variable_from_reference(each, "last") for each in variables]

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        dots = [tf.reduce_sum(grad * last) for grad, last in zip(grads, self.last, strict=True)]
        self.learning_rate.assign(self.learning_rate + 0.01 * sum(dots))
        super().apply(grads, trainable_variables)
        for last, grad in zip(self.last, grads, strict=True):
            last.assign(grad)


class SkipsLarge(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        def update():
            super(SkipsLarge, self).apply(grads, trainable_variables)
            return 0

        tf.cond(tf.linalg.global_norm(grads) < 1.2, update, lambda: 0)


class Noisy(keras.optimizers.SGD):
    """Adds noise to the gradients, as stochastic gradient Langevin dynamics do."""

    def __init__(self, rate):
        super().__init__(rate)
        self.seed = keras.random.SeedGenerator(3)

    def update_step(self, gradient, variable, learning_rate):
        noise = 0.1 * keras.random.normal(gradient.shape, seed=self.seed)
        super().update_step(gradient + noise, variable, learning_rate)


class Normalized(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients(
            [(grad / tf.norm(grad), var) for grad, var in grads_and_vars]
        )


def make_sign(rate):
    optimizer = keras.optimizers.SGD(rate)
    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply([tf.sign(g) for g in grads], variables)
    return optimizer


def make_scaled(rate):
    return keras.optimizers.LossScaleOptimizer(AutoClip(rate), initial_scale=4.0)


@on_two_replicas
@pytest.mark.parametrize(
    "optimizer",
    [*exhaustive(make_sign, AutoClip), Hypergradient, *exhaustive(SkipsLarge), Noisy, make_scaled],
)
def test_it_gets_the_gradient_of_one_device(strategy, optimizer):
    def make_here():
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile(optimizer(0.1), "mse")
        return model

    def fit(model):  # A warning is an error here.
        model.fit(X, np.abs(X[:, :1]) * 2, batch_size=15, epochs=2, shuffle=False, verbose=0)
        return [np.array(each) for each in model.optimizer.variables]

    check_as_plain(strategy, make_here, fit)


class Sharp(keras.optimizers.SGD):
    """Takes the gradient again where the one that it is given leads to, and applies this one."""

    def apply(self, grads, trainable_variables: Any = None, loss_now: Any = None):
        step = [0.05 * grad / tf.linalg.global_norm(grads) for grad in grads]
        for variable, change in zip(trainable_variables, step, strict=True):
            variable.assign_add(change)
        with tf.GradientTape() as tape:
            loss = loss_now()
        again = tape.gradient(loss, trainable_variables)
        for variable, change in zip(trainable_variables, step, strict=True):
            variable.assign_sub(change)
        super().apply(again, trainable_variables)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data

        def loss_now():
            return tf.reduce_mean(tf.square(self(x, training=True) - y))

        with tf.GradientTape() as tape:
            loss = loss_now()
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        if isinstance(self.optimizer, Sharp):
            self.optimizer.apply(gradients, weights, loss_now=loss_now)
        else:
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


class Compiled(OwnStep):
    train_step = tf.function(OwnStep.train_step)


class HalvesLarge(keras.optimizers.SGD):
    """Has a condition in Python, which AutoGraph makes one of the graph."""

    def apply_gradients(self, grads_and_vars):
        gradients, variables = zip(*grads_and_vars, strict=True)
        if tf.linalg.global_norm(gradients) > 0.5:
            gradients = tuple(gradient / 2 for gradient in gradients)
        super().apply_gradients(zip(gradients, variables, strict=True))


@on_two_replicas
@pytest.mark.parametrize(
    ("model_class", "optimizer"),
    [*exhaustive((OwnStep, Normalized)), (OwnStep, Sharp), (Compiled, HalvesLarge)],
)
def test_it_does_in_a_train_step_of_the_users_own(strategy, model_class, optimizer):
    def make_here():
        model = model_class(
            [keras.Input((6,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        )
        model.compile(optimizer(0.1))
        return model

    def fit(model):
        return model.fit(X, X[:, :1], batch_size=15, shuffle=False, verbose=0).history

    check_as_plain(strategy, make_here, fit)


@each_kind_of_strategy
def test_callbacks_have_their_gradients_before_it(strategy):
    def fit_with(optimizer, given):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile(optimizer(0.1), "mse")
        batches = {"batch_size": 16, "shuffle": False, "verbose": 0}
        model.fit(X, np.abs(X[:, :1]) * 2, callbacks=given(), **batches)
        return model

    def guards():
        return [callbacks.StopOnNonFinite(), callbacks.GradientClipping(global_norm=1.0)]

    # None is large then.
    ours, theirs = (fit_with(each, guards) for each in (SkipsLarge, keras.optimizers.SGD))
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    clips = fit_with(AutoClip, lambda: [callbacks.GradientAccumulation(steps=2)]).optimizer
    assert int(clips.number) == 3
