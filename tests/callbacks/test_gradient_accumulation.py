"""Accumulation: the weights of batches that are k times larger."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import GradientAccumulation, GradientClipping, MovingAverage
from kerasdist.parity import models
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_strategy


def groups(size, **arguments):
    return hand_loop.in_groups(hand_loop.global_batches(**arguments), size)


@each_strategy
def test_weights_are_those_of_larger_batches(strategy):
    model = hand_loop.make_model(strategy)
    hand_loop.fit(model, [GradientAccumulation(steps=3)])

    # Groups of 48, 48, 37, 48 examples, and one that is not full.
    hand_loop.assert_same(model, hand_loop.train(batches=groups(3)).weights)
    assert model.optimizer.iterations.numpy() == 4


@hand_loop.on_one_device_and_two_replicas
def test_one_batch_with_all_the_examples_of_the_group_gives_the_same(strategy):
    ours, theirs = hand_loop.make_model(strategy), hand_loop.make_model(strategy)
    hand_loop.fit(ours, [GradientAccumulation(steps=7)])
    hand_loop.fit(theirs, batch_size=101)

    hand_loop.assert_same(ours, theirs.get_weights())


@hand_loop.on_one_device_and_two_replicas
def test_a_group_that_is_not_full_goes_on_in_the_next_fit_with_this_callback(strategy):
    model = hand_loop.make_model(strategy)
    accumulation = GradientAccumulation(steps=3)
    hand_loop.fit(model, [accumulation], epochs=1)
    hand_loop.fit(model, epochs=0)
    hand_loop.fit(model, [accumulation], epochs=2)

    hand_loop.assert_same(model, hand_loop.train(batches=groups(3, epochs=3)).weights)
    assert model.optimizer.iterations.numpy() == 7


def test_another_callback_starts_with_an_empty_group():
    model = hand_loop.make_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=3)], epochs=1)
    hand_loop.fit(model, [GradientAccumulation(steps=3)], epochs=1)

    truth = hand_loop.train(batches=groups(3, epochs=1) * 2)
    hand_loop.assert_same(model, truth.weights)


@hand_loop.on_one_device_and_two_replicas
def test_schedules_count_updates(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5, staircase=True)
    model = hand_loop.make_model(strategy, lambda: keras.optimizers.SGD(schedule, momentum=0.9))
    hand_loop.fit(model, [GradientAccumulation(steps=3)])

    update = hand_loop.sgd(lambda step: 0.2 * 0.5 ** (step // 2))
    hand_loop.assert_same(model, hand_loop.train(batches=groups(3), update=update).weights)


@pytest.mark.parametrize("average_comes_first", [False, True])
@hand_loop.on_one_device_and_two_replicas
def test_averages_count_updates(strategy, average_comes_first):
    model = hand_loop.make_model(strategy)
    average = MovingAverage(0.5)
    callbacks = [GradientAccumulation(steps=3), average]
    hand_loop.fit(model, callbacks[::-1] if average_comes_first else callbacks)

    truth = hand_loop.average(hand_loop.train(batches=groups(3)).trajectory, 0.5)
    hand_loop.assert_same(average.get_state().values(), truth)


@hand_loop.on_one_device_and_two_replicas
def test_what_comes_before_acts_on_every_batch_and_what_comes_after_on_the_group(strategy):
    before, after = hand_loop.make_model(strategy), hand_loop.make_model(strategy)
    clipping, accumulation = GradientClipping(norm=0.1), GradientAccumulation(steps=7)
    hand_loop.fit(before, [clipping, accumulation], epochs=1)
    hand_loop.fit(after, [accumulation, clipping], epochs=1)

    recorded = []
    hand_loop.train(lambda g, step: recorded.append(g) or hand_loop.multiply(g, [0] * 4))
    sizes = np.array([16] * 6 + [5]) / 101
    each_clipped = [hand_loop.clip_norm(gradients, 0.1) for gradients in recorded[:7]]
    means = [np.tensordot(sizes, parts, 1) for parts in zip(*each_clipped, strict=True)]
    together = [np.tensordot(sizes, parts, 1) for parts in zip(*recorded[:7], strict=True)]
    for model, mean in ((before, means), (after, hand_loop.clip_norm(together, 0.1))):
        hand_loop.assert_same(
            model, [w - 0.1 * g for w, g in zip(hand_loop.START, mean, strict=True)]
        )
    assert hand_loop.largest_difference(before.get_weights(), after.get_weights()) > 1e-3


def test_sparse_gradients_are_accumulated():
    model = hand_loop.make_words_model(strategies.get("2 replicas"))
    hand_loop.fit(model, [GradientAccumulation(steps=3)], data=hand_loop.words())

    truth = hand_loop.train(
        batches=groups(3, data=hand_loop.words()),
        loss=hand_loop.cross_entropy,
        start=hand_loop.WORDS_START,
        update=hand_loop.adam(),
    )
    hand_loop.assert_same(model, truth.weights)


def test_every_optimizer_of_a_train_step_updates_its_variables():
    strategy = strategies.get("one device")
    ours, theirs = (hand_loop.make(strategy, models.with_two_optimizers) for _ in range(2))
    hand_loop.fit(ours, [GradientAccumulation(steps=7)])
    hand_loop.fit(theirs, batch_size=101)

    hand_loop.assert_same(ours, theirs.get_weights())


def test_a_layer_that_is_trained_only_in_the_second_fit():
    strategy = strategies.get("2 replicas")
    model = hand_loop.make_model(strategy)
    accumulation = GradientAccumulation(steps=7)
    model.get_layer("hidden").trainable = False
    hand_loop.fit(model, [accumulation], epochs=1)
    model.get_layer("hidden").trainable = True
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")
    hand_loop.fit(model, [accumulation], epochs=1)

    assert np.abs(model.get_weights()[0] - hand_loop.START[0]).max() > 1e-3


@pytest.mark.parametrize("dtype", [None, "mixed_float16"])
def test_keras_own_accumulation_is_not_added(dtype):
    model = hand_loop.make_model(
        strategies.get("2 replicas"),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=5),
        dtype=dtype,
        auto_scale_loss=True,
    )

    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=5\. Use one of the two"):
        hand_loop.fit(model, [GradientAccumulation(steps=3)])


@pytest.mark.parametrize(
    ("steps", "error"),
    [(1, ValueError), (0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError)],
)
def test_anything_but_two_or_more_batches_is_refused_with_its_value(steps, error):
    with pytest.raises(error, match=f"steps={steps}"):
        GradientAccumulation(steps=steps)
