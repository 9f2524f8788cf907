"""Noise: normal, the same on every replica, another one in every step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import GradientAccumulation, GradientMultipliers, GradientNoise
from kerasdist.training.update_callback import UpdateCallback
from tests import strategies
from tests.callbacks import hand_loop
from tests.strategies import each_replicated_strategy, each_strategy


class Recorder(UpdateCallback):
    """Keeps the first gradient of each of the first 10 calls."""

    def prepare(self, model):
        self.count = tf.Variable(0, trainable=False)
        shape = model.trainable_variables[0].shape
        self.gradients = tf.Variable(tf.zeros([10, *shape]), trainable=False)

    def update(self, gradients_and_variables, apply):
        row = tf.reshape(tf.one_hot(self.count, 10), [10, 1, 1])
        self.gradients.assign_add(row * gradients_and_variables[0][0])
        self.count.assign_add(1)
        apply(gradients_and_variables)


def train(strategy, *callbacks):
    model = hand_loop.make_model(strategy, lambda: keras.optimizers.SGD(0.1))
    hand_loop.fit(model, callbacks, epochs=1)
    return model


def noise_of(strategy, *noise, then=()):
    """Returns what is left of gradients that are multiplied by 0: float32 [10, 6, 8]."""
    recorder = Recorder()
    train(strategy, GradientMultipliers({".*": 0.0}), *noise, recorder, *then)
    return hand_loop.on_every_replica(strategy, [_Value(recorder.gradients)])[0][0]


class _Value:
    def __init__(self, value):
        self.value = value


@each_strategy
def test_noise_has_the_mean_and_the_deviation_that_were_asked_for(strategy):
    noise = noise_of(strategy, GradientNoise(stddev=0.5, seed=1))[:7]

    assert noise.std() == pytest.approx(0.5, rel=0.15)
    assert abs(noise.mean()) < 0.1
    assert np.abs(np.corrcoef(noise.reshape(7, -1)) - np.eye(7)).max() < 0.6


@each_replicated_strategy
def test_noise_is_added_once_whatever_the_number_of_replicas(strategy):
    one = train(strategies.get("one device"), GradientNoise(stddev=0.1, seed=1))
    many = train(strategy, GradientNoise(stddev=0.1, seed=1))

    hand_loop.assert_same(many, one.get_weights())
    first, *others = hand_loop.on_every_replica(strategy, many.trainable_variables)
    for other in others:
        hand_loop.assert_same(other, first, tolerance=0)


def test_a_seed_gives_its_own_noise_and_none_draws_one():
    strategy = strategies.get("one device")
    seeded = [noise_of(strategy, GradientNoise(stddev=1.0, seed=seed)) for seed in (1, 1, 2)]
    drawn = [noise_of(strategy, GradientNoise(stddev=1.0)) for _ in range(2)]

    assert np.array_equal(seeded[0], seeded[1])
    assert not np.array_equal(seeded[0], seeded[2])
    assert not np.array_equal(drawn[0], drawn[1])


def test_every_batch_of_a_group_gets_its_own_noise():
    noise = noise_of(
        strategies.get("2 replicas"),
        GradientNoise(stddev=1.0, seed=1),
        then=[GradientAccumulation(steps=4)],
    )

    assert not np.array_equal(noise[0], noise[1])


@pytest.mark.parametrize("stddev", [0, -1.0, True, "1", None, float("inf"), float("nan")])
def test_anything_but_a_positive_number_is_refused_with_its_value(stddev):
    with pytest.raises((ValueError, TypeError), match=f"stddev={stddev!r}"):
        GradientNoise(stddev)
