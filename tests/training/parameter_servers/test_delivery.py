"""Gradients on their way to parameter servers; that they arrive is for the tests of clusters."""

from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.parameter_servers.delivery import RemoteDelivery
from kerasdist.training.parameter_servers.ledger import Ledger
from tests.training.parameter_servers.calls import begun, tell


class Optimizer:
    """Holds what an optimizer that changes nothing holds."""

    loss_scale_factor = clipnorm = global_clipnorm = clipvalue = ema_overwrite_frequency = None
    use_ema = False

    def __init__(self):
        self.iterations = self._iterations = keras.Variable(0, dtype="int64", trainable=False)
        self._learning_rate = keras.Variable(1.0, trainable=False)


def test_it_lets_go_of_the_optimizer_and_its_graph():
    delivery = RemoteDelivery()

    with pytest.raises(KeyError), delivery.updating(cast(Any, Optimizer())):
        raise KeyError

    assert not any(vars(delivery).values())


def test_gradients_that_are_clipped_first_are_not_sent():
    optimizer: Any = Optimizer()
    optimizer.clipnorm = 1.0
    weight = keras.Variable(0.0)

    given = RemoteDelivery().apply(lambda *arguments: arguments, optimizer, ["g"], [weight])

    assert given == (optimizer, ["g"], [weight])


def test_what_is_made_again_is_only_what_is_missing():
    optimizer: Any = Optimizer()
    weights = [keras.Variable(np.zeros(2), dtype="float32"), keras.Variable(0, dtype="float32")]
    ledger = Ledger([weights[0].value.device], 1, sleep=lambda secs: None)

    def add(part, gradient):
        part.assign_add(gradient)

    def original(optimizer, gradients, variables):
        for gradient, variable in zip(gradients, variables, strict=True):
            delivery.update(variable.value, add, [gradient])
        delivery.add_in_place(optimizer.iterations, 1)

    def update():
        delivery.apply(original, optimizer, [tf.ones([2]), tf.ones([])], weights)

    @tf.function(autograph=False)
    def make_step(step, done=None):
        with ledger.tracing(done), ledger.at_step(step), delivery.updating(optimizer):
            delivery.carry_out(update)

    lost = begun(ledger)
    for step in range(3):
        delivery = RemoteDelivery(ledger=ledger)
        tell(ledger, lost)
        make_step(tf.constant(step))
    done = ledger.close(lost)
    again = begun(ledger)
    for step in range(5):
        delivery = RemoteDelivery(ledger=ledger)
        tell(ledger, again)
        make_step(tf.constant(step), tf.constant(done))

    assert weights[0].numpy().tolist() == [5, 5]
    assert int(weights[1].numpy()) == int(optimizer.iterations.numpy()) == 5
    assert ledger.close(again) > done


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="from Keras 3.15 on")
def test_of_an_update_that_is_divided_what_is_made_again_is_only_what_is_missing():
    weights = [keras.Variable(np.zeros(2), dtype="float32") for _ in range(2)]
    inner = [keras.optimizers.SGD(-1.0) for _ in range(2)]
    by_path = dict(zip((each.path for each in weights), inner, strict=True))
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: by_path[variable.path])
    optimizer.build(weights)
    ledger = Ledger([weights[0].value.device], 1, sleep=lambda secs: None)

    def add(part, gradient):
        part.assign_add(gradient)

    def update_one(optimizer, gradients, variables):
        for gradient, variable in zip(gradients, variables, strict=True):
            delivery.update(variable.value, add, [gradient])
        delivery.add_in_place(optimizer.iterations, 1)

    def carry_out(*arguments, **kwargs):
        delivery.carry_out(lambda: delivery.apply(*arguments), **kwargs)

    def update_both(optimizer, gradients, variables):
        for each, gradient, variable in zip(inner, gradients, variables, strict=True):
            carry_out(update_one, each, [gradient], [variable])
        delivery.add_in_place(optimizer.iterations, 1)

    def update():
        carry_out(update_both, optimizer, [tf.ones([2])] * 2, weights, is_divided=True)

    def update_first():
        carry_out(update_one, inner[0], [tf.ones([2])], weights[:1])

    def run(update, attempt, step, done=None):
        @tf.function(autograph=False)
        def make_step():
            with ledger.tracing(done), ledger.at_step(step), delivery.updating(optimizer):
                update()

        tell(ledger, attempt)
        make_step()

    lost = begun(ledger)
    for step, all_or_first in enumerate((update, update_first)):
        delivery = RemoteDelivery(ledger=ledger)
        run(all_or_first, lost, step)
    done, again = tf.constant(ledger.close(lost)), begun(ledger)
    for step in range(3):
        delivery = RemoteDelivery(ledger=ledger)
        run(update, again, step, done)

    assert [weight.numpy().tolist() for weight in weights] == [[3, 3], [3, 3]]
    assert [int(each.iterations) for each in (optimizer, *inner)] == [3, 3, 3]


class Decaying(keras.optimizers.SGD):
    """Changes a number of its own in the update of each weight."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.learning_rate = self.learning_rate * 0.5
        self.assign_add(self.learning_rate, 0.25)


def test_an_optimizer_that_changes_its_learning_rate_on_the_way_does_what_it_does_in_plain_keras():
    expected, weights = [
        [keras.Variable(np.ones(size), dtype="float32") for size in (2, 3, 1)] for _ in range(2)
    ]
    plain, optimizer = Decaying(4.0), Decaying(4.0)
    for each, trained in ((plain, expected), (optimizer, weights)):
        each.build(trained)
    for _ in range(2):
        plain.apply([tf.ones(weight.shape) for weight in expected], expected)
    ledger = Ledger([weights[0].value.device], 1, sleep=lambda secs: None)

    def original(optimizer, gradients, variables):
        def step(variable, gradient, learning_rate):
            optimizer.update_step(gradient, variable, learning_rate)

        for gradient, variable in zip(gradients, variables, strict=True):
            delivery.update(variable.value, step, [gradient, optimizer.learning_rate])
        delivery.add_in_place(optimizer.iterations, 1)

    def update():
        delivery.apply(original, optimizer, [tf.ones(weight.shape) for weight in weights], weights)

    @tf.function(autograph=False)
    def make_step(step):
        with ledger.tracing(), ledger.at_step(step), delivery.updating(optimizer):
            delivery.carry_out(update)

    attempt = begun(ledger)
    for step in range(2):
        delivery = RemoteDelivery(ledger=ledger)
        tell(ledger, attempt)
        make_step(tf.constant(step))

    found, truths = [*weights, *optimizer.variables], [*expected, *plain.variables]
    for weight, truth in zip(found, truths, strict=True):
        np.testing.assert_array_equal(weight, truth)
