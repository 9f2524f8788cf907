"""Training of some variables only: the others stay as they are, bit by bit."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import TrainableScopes
from kerasdist.parity import models
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_kind_of_strategy, each_strategy


@each_strategy
def test_what_is_trained_is_trained_as_if_the_rest_did_not_move(strategy):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [TrainableScopes(["head/.*"])])

    truth = hand_loop.train(lambda g, step: hand_loop.multiply(g, (0, 0, 1, 1)))
    hand_loop.assert_same(model, truth.weights)


@each_strategy
def test_frozen_variables_stay_bit_equal_on_every_replica(strategy):
    model = hand_loop.make_model(
        strategy, lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
    )
    hand_loop.fit(model)  # From here on there is momentum.
    before = hand_loop.on_every_replica(strategy, model.trainable_variables)
    hand_loop.fit(model, [TrainableScopes(["head/kernel"])])

    after = hand_loop.on_every_replica(strategy, model.trainable_variables)
    for old, new in zip(before, after, strict=True):
        same = [np.array_equal(*pair) for pair in zip(old, new, strict=True)]
        assert same == [True, True, False, True]


def test_scopes_are_variables_too():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [TrainableScopes([model.trainable_variables[1]])])

    same = [
        np.array_equal(*pair) for pair in zip(model.get_weights(), hand_loop.START, strict=True)
    ]
    assert same == [True, False, True, True]


def test_the_plan_names_variables_by_their_paths():
    kernel = keras.Variable(0.0, name="kernel")

    described = TrainableScopes(["head/.*", kernel], freeze_batch_statistics=True).describe()

    assert described == "train head/.*, kernel only, freeze batch statistics"


def test_the_next_fit_trains_everything_again():
    model = hand_loop.make_model(strategies.get("2 replicas"), lambda: keras.optimizers.SGD(0.1))
    hand_loop.fit(model, [TrainableScopes(["head/.*"])], epochs=1)
    hand_loop.fit(model, epochs=1)

    truth = hand_loop.train(
        lambda g, step: hand_loop.multiply(g, (step > 6, step > 6, 1, 1)),
        update=hand_loop.sgd(0.1, momentum=0),
    )
    hand_loop.assert_same(model, truth.weights)


def make_normalized_models(strategy):
    return [hand_loop.make(strategy, models.normalized) for _ in range(2)]


def trainable(model):
    return [each.numpy() for each in model.trainable_variables]


@each_kind_of_strategy
def test_batch_statistics_stay_and_batches_are_normalized_with_their_own(strategy):
    frozen, free = make_normalized_models(strategy)
    moving = frozen.layers[1].non_trainable_variables
    before = hand_loop.on_every_replica(strategy, moving)
    hand_loop.fit(frozen, [TrainableScopes(None, freeze_batch_statistics=True)])
    hand_loop.fit(free)

    for old, new in zip(before, hand_loop.on_every_replica(strategy, moving), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(old, new, strict=True))
    # Moving statistics take no part in training: with them or without, the weights are the same.
    hand_loop.assert_same(trainable(frozen), trainable(free))


def test_batch_statistics_move_again_in_the_next_fit():
    model, free = make_normalized_models(strategies.get("2 replicas"))
    layer = model.layers[1]
    hand_loop.fit(model, [TrainableScopes(None, freeze_batch_statistics=True)], epochs=1)
    assert np.array_equal(layer.moving_mean.numpy(), free.layers[1].moving_mean.numpy())
    hand_loop.fit(model, epochs=1)

    assert layer.momentum == 0.8
    assert np.abs(layer.moving_mean.numpy()).max() > 1e-3


@each_kind_of_strategy
def test_a_scope_that_matches_nothing_lists_the_closest_paths(strategy):
    model = hand_loop.make_model(strategy)

    with pytest.raises(ValueError, match=r"'head' in `scopes` matches no trainable.*head/kernel"):
        hand_loop.fit(model, [TrainableScopes(["head"])])


def test_batch_statistics_of_a_model_without_any():
    model = hand_loop.make_model(strategies.get("2 replicas"))

    with pytest.raises(ValueError, match="'net' has no BatchNormalization"):
        hand_loop.fit(model, [TrainableScopes(None, freeze_batch_statistics=True)])


@pytest.mark.parametrize(
    ("scopes", "error", "message"),
    [
        ([], ValueError, r"scopes=\[\]"),
        (None, ValueError, "scopes=None"),
        ("head/.*", TypeError, "'head/.*'"),
        ({"head"}, TypeError, "{'head'}"),
        ([3], TypeError, "3 of type int"),
        (["("], ValueError, r"'\(', which is not a regular expression"),
    ],
)
def test_what_is_no_list_of_scopes_is_refused_with_its_value(scopes, error, message):
    with pytest.raises(error, match=message):
        TrainableScopes(scopes)


def test_whether_batch_statistics_freeze_is_a_bool():
    arguments: dict = {"freeze_batch_statistics": "no"}

    with pytest.raises(TypeError, match="freeze_batch_statistics='no'"):
        TrainableScopes(None, **arguments)
