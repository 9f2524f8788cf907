"""Clipping: once, of the gradient of the global batch."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import GradientClipping
from kerasdist.parity import models
from kerasdist.parity.data import examples
from kerasdist.training.context import traits
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_kind_of_strategy, each_strategy

# Limits that some steps exceed and others do not.
MODES = {
    "norm": (0.3, hand_loop.clip_norm, "clipnorm"),
    "global_norm": (0.5, hand_loop.clip_global_norm, "global_clipnorm"),
    "value": (0.1, hand_loop.clip_value, "clipvalue"),
}
each_mode = pytest.mark.parametrize("mode", MODES)


def clipping(mode):
    return GradientClipping(**{mode: MODES[mode][0]})


def by_hand(mode):
    limit, clip, _ = MODES[mode]
    return hand_loop.train(lambda gradients, step: clip(gradients, limit)).weights


@each_mode
@each_strategy
def test_gradients_are_clipped(strategy, mode):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [clipping(mode)])

    hand_loop.assert_same(model, by_hand(mode))


@each_mode
def test_the_truth_differs_from_no_clipping(mode):
    assert hand_loop.largest_difference(by_hand(mode), hand_loop.train().weights) > 0.01


@each_mode
def test_keras_own_option_gives_the_same_on_one_device(mode):
    limit, _, option = MODES[mode]
    ours = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(ours, [clipping(mode)])
    theirs = keras.models.clone_model(ours)
    theirs.compile(keras.optimizers.SGD(0.1, momentum=0.9, **{option: limit}), "mse")
    theirs.set_weights(hand_loop.START)
    hand_loop.fit(theirs)

    hand_loop.assert_same(ours, theirs.get_weights())


def fit_on_nan(model, mode):
    x, y = examples()
    with pytest.raises(FloatingPointError, match="No weight was changed"):
        hand_loop.fit(model, [clipping(mode)], data=(x * np.nan, y), epochs=1)


@each_mode
@each_kind_of_strategy
def test_a_gradient_that_is_not_finite_stops_and_leaves_the_weights(strategy, mode):
    model = hand_loop.make_model(strategy)
    fit_on_nan(model, mode)

    for values in hand_loop.on_every_replica(strategy, model.trainable_variables):
        hand_loop.assert_same(values, hand_loop.START, tolerance=0)


@each_kind_of_strategy
def test_a_gradient_that_is_not_finite_does_not_decay_the_weights_either(strategy):
    model = hand_loop.make_model(strategy, lambda: keras.optimizers.SGD(0.1, weight_decay=0.1))
    fit_on_nan(model, "norm")

    hand_loop.assert_same(model, hand_loop.START, tolerance=0)


def test_a_warning_says_that_nothing_is_checked_under_xla():
    model = hand_loop.make_model(strategies.get("one device"), jit_compile=True)
    with pytest.warns(UserWarning, match="XLA drops GradientClipping's check"):
        hand_loop.fit(model, [clipping("norm")])

    hand_loop.assert_same(model, by_hand("norm"))


def test_training_goes_on_after_the_error():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    fit_on_nan(model, "norm")
    hand_loop.fit(model, [clipping("norm")])

    hand_loop.assert_same(model, by_hand("norm"))


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@each_mode
def test_variables_without_gradient_are_passed_over(mode):
    model = hand_loop.make(strategies.get("2 replicas"), models.with_unused_variable)
    before = model.get_weights()
    hand_loop.fit(model, [clipping(mode)])

    assert hand_loop.largest_difference(before, model.get_weights()) > 0.01


def test_a_limit_may_be_a_number_of_numpy():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientClipping(norm=np.float32(0.05))])

    plain = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(plain, [GradientClipping(norm=0.05)])
    hand_loop.assert_same(model, plain.get_weights())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "norm=None, global_norm=None, value=None"),
        ({"norm": 1.0, "value": 2.0}, ValueError, "norm=1.0, global_norm=None, value=2.0"),
        ({"norm": -1.0}, ValueError, "norm=-1.0"),
        ({"global_norm": 0}, ValueError, "global_norm=0"),
        ({"value": float("inf")}, ValueError, "value=inf"),
        ({"value": float("nan")}, ValueError, "value=nan"),
        ({"norm": True}, TypeError, "norm=True"),
        ({"norm": "1"}, TypeError, "norm='1'"),
    ],
)
def test_anything_but_one_positive_number_is_refused_with_its_value(arguments, error, message):
    with pytest.raises(error, match=message):
        GradientClipping(**arguments)


def test_xla_that_parameter_servers_do_not_use_is_no_news(monkeypatch):
    monkeypatch.setattr(traits, "has_remote_variables", lambda strategy: True)
    model = hand_loop.make_model(strategies.get("one device"), jit_compile=True)

    GradientClipping(norm=1.0).prepare(model)  # Warnings are errors here.
