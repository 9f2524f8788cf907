"""Multipliers: the gradient of the global batch times a factor, by path."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import GradientMultipliers
from kerasdist.parity import models
from kerasdist.parity.data import examples
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_kind_of_strategy, each_strategy


def train(strategy, multipliers, **arguments):
    model = hand_loop.make_model(strategy, **arguments)
    hand_loop.fit(model, [GradientMultipliers(multipliers)])
    return model


def by_hand(*factors, **arguments):
    return hand_loop.train(
        lambda gradients, step: hand_loop.multiply(gradients, factors), **arguments
    ).weights


@each_strategy
def test_gradients_are_multiplied(strategy):
    model = train(strategy, {"head/.*": 3.0, "hidden/bias": 0.5})

    hand_loop.assert_same(model, by_hand(1, 0.5, 3, 3))


@each_kind_of_strategy
def test_a_variable_takes_the_first_key_that_matches(strategy):
    model = train(strategy, {".*/kernel": 2.0, "head/.*": 0.1})

    hand_loop.assert_same(model, by_hand(2, 1, 2, 0.1))


@each_kind_of_strategy
@pytest.mark.parametrize("kind", [list, tuple])
def test_variables_are_keys_of_pairs(strategy, kind):
    model = hand_loop.make_model(strategy)
    hidden_kernel, *_, head_bias = model.trainable_variables
    pairs = kind([(hidden_kernel, 0.0), (head_bias, 3.0)])
    hand_loop.fit(model, [GradientMultipliers(pairs)])

    hand_loop.assert_same(model, by_hand(0, 1, 1, 3))


@each_kind_of_strategy
def test_factors_are_schedules_and_functions_of_the_step(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(2.0, 3, 0.5, staircase=True)
    model = train(strategy, {".*/kernel": schedule, ".*/bias": lambda step: step % 2})

    def change(gradients, step):
        factors = [2.0 * 0.5 ** (step // 3), step % 2]
        return hand_loop.multiply(gradients, factors * 2)

    hand_loop.assert_same(model, hand_loop.train(change).weights)


@each_strategy
def test_zero_freezes_under_plain_sgd(strategy):
    model = train(strategy, {"hidden/.*": 0}, optimizer=lambda: keras.optimizers.SGD(0.1))

    for values in hand_loop.on_every_replica(strategy, model.trainable_variables):
        assert np.array_equal(values[0], hand_loop.START[0])
        assert np.array_equal(values[1], hand_loop.START[1])
        assert not np.array_equal(values[2], hand_loop.START[2])


@each_kind_of_strategy
def test_a_key_must_match_the_whole_path_and_the_error_lists_the_closest(strategy):
    with pytest.raises(ValueError, match=r"'kernel' in `multipliers` matches no.*head/kernel"):
        train(strategy, {"kernel": 2.0})


@each_kind_of_strategy
def test_a_variable_without_gradient_is_named(strategy):
    model = hand_loop.make(strategy, models.with_unused_variable)

    with pytest.raises(ValueError, match=r"/unused', which has no gradient"):
        hand_loop.fit(model, [GradientMultipliers({".*": 2.0})])


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
def test_a_variable_without_gradient_may_stand_outside_the_map():
    model = hand_loop.make(strategies.get("2 replicas"), models.with_unused_variable)
    before = model.get_weights()
    hand_loop.fit(model, [GradientMultipliers({".*/kernel": 0.5})])

    assert hand_loop.largest_difference(before, model.get_weights()) > 0.01


@pytest.mark.parametrize(
    ("multipliers", "error", "message"),
    [
        ({}, ValueError, "`multipliers` is empty.*Received: {}"),
        ("a", TypeError, "must be a dict.*'a' of type str"),
        ([], ValueError, r"`multipliers` is empty.*Received: \[\]"),
        ({".*/kernel"}, TypeError, "must be a dict.*of type set"),
        ([("a",)], TypeError, r"must hold pairs .*Received: \('a',\)"),
        ([("a", 1.0), "bc"], TypeError, "must hold pairs .*Received: 'bc'"),
        (None, TypeError, "must be a dict.*None of type NoneType"),
        ({"(": 1.0}, ValueError, r"'\(', which is not a regular expression"),
        ({3: 1.0}, TypeError, "`multipliers` must hold regular expressions .*3 of type int"),
        ({"a": "2"}, TypeError, "{'a': '2'}"),
        ({"a": None}, TypeError, "{'a': None}"),
        ({"a": True}, TypeError, "{'a': True}"),
        ({"a": float("nan")}, ValueError, "nan"),
        ({"a": float("inf")}, ValueError, "inf"),
    ],
)
def test_what_is_no_map_of_factors_is_refused_with_its_value(multipliers, error, message):
    with pytest.raises(error, match=message):
        GradientMultipliers(multipliers)


def test_an_old_callback_follows_the_optimizer_of_a_new_compile():
    strategy = strategies.get("2 replicas")
    callback = GradientMultipliers({".*": lambda step: step < 7})
    model = hand_loop.make_model(strategy, optimizer=lambda: keras.optimizers.SGD(0.1))
    hand_loop.fit(model, [callback], epochs=1)
    after_seven_updates = model.get_weights()
    hand_loop.fit(model, [callback], epochs=1)
    hand_loop.assert_same(model, after_seven_updates, 0)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")
    hand_loop.fit(model, [callback], epochs=1)

    truth = hand_loop.train(update=hand_loop.sgd(0.1, momentum=0))
    hand_loop.assert_same(model, truth.weights)


def test_the_hand_loop_is_what_plain_keras_does():
    x, y = examples()
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.set_weights(hand_loop.START)
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)

    hand_loop.assert_same(model, hand_loop.train().weights)
