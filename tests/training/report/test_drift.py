"""Replicas whose weights, states or learning rates differ.

Over a cluster: cluster/test_several_workers.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.training.context import peers
from kerasdist.training.report.drift import check_begin, warn_of_drift
from tests import strategies
from tests.strategies import on_two_replicas
from tests.warned import warned_by


@pytest.fixture
def model():
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="head")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture
def others(monkeypatch):
    """Factors by which the numbers of a second worker differ from those of this one."""
    factors = {}

    def gather(strategy, row):
        other = row.copy()
        for index, factor in factors.items():
            other[index] *= factor
        return np.stack([row, other])

    monkeypatch.setattr(peers, "gather", gather)
    monkeypatch.setattr(peers, "are_alike", lambda strategy, text: True)
    return factors


def test_what_differs_is_named(model, others):
    others |= {0: 1.001, -1: 0.7}

    with pytest.warns(UserWarning, match=r"after epoch 3 they differ in '.*head/kernel', the lear"):
        assert warn_of_drift(model, 2)


def test_what_the_last_hooks_of_fit_have_changed_is_told_of_them(model, others):
    others |= {0: 1.001}

    with pytest.warns(UserWarning, match=r"at the end of `fit` they differ in '.*head/kernel'"):
        assert warn_of_drift(model)


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-6])
def test_what_rounding_explains_is_no_drift(model, others, factor):
    others |= {0: factor, 1: 100.0}  # The bias is zero.

    assert not warn_of_drift(model, 0)


def test_what_is_not_finite_on_one_worker_alone_is_drift(model, others):
    others |= {0: np.nan}

    with pytest.warns(UserWarning, match="they differ in '.*head/kernel'. What"):
        assert warn_of_drift(model, 0)

    model.layers[0].bias.assign([np.nan, 0.0])
    others.clear()
    assert not warn_of_drift(model, 0)  # On all of them.


def test_workers_may_begin_with_other_rates_but_not_with_other_weights(model, others):
    others |= {-1: 2.0}
    check_begin(model)

    others |= {0: 1.001}
    with pytest.raises(ValueError, match=r"begin `fit` with different weights: '.*head/kernel'\."):
        check_begin(model)


def test_every_optimizer_is_looked_at(model, others):
    model.others = {"critic": keras.optimizers.SGD(0.1)}
    others |= {-1: 2.0}

    with pytest.warns(UserWarning, match="they differ in the learning rate. What"):
        assert warn_of_drift(model, 0)


def test_states_that_no_optimizer_trains_are_looked_at(model, others):
    model.add(keras.layers.Dense(2, name="teacher", kernel_initializer="ones", trainable=False))
    others |= {2: 2.0}

    remedy = "the state '.*teacher/kernel' is not the same.*`kerasdist.global_mean"
    with pytest.warns(UserWarning, match=remedy):
        assert warn_of_drift(model, 0)

    others |= {0: 2.0}
    with pytest.warns(
        UserWarning, match="they differ in '.*head/kernel', '.*teacher/kernel'. What"
    ):
        assert warn_of_drift(model, 0)


def test_a_model_need_not_have_weights_or_an_optimizer(model, others):
    model.trainable = False
    model.optimizer = None

    assert not warn_of_drift(model, 0)


class Augmenter(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.probability = tf.Variable(0.0)

    def call(self, x):
        return x * (1.0 - self.probability / 2)


class Adaptive(keras.Model):
    """Augments the more, the more examples it takes for real ones: at first and at last as far."""

    def __init__(self, mean_of):
        super().__init__()
        self.mean_of = mean_of
        self.augmenter = Augmenter()
        self.judge = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.judge(self.augmenter(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            outputs = self(x)
            loss = tf.reduce_mean(tf.nn.softplus(-outputs))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        accuracy = self.mean_of(tf.cast(outputs > 0.0, tf.float32))
        probability = self.augmenter.probability
        probability.assign(tf.clip_by_value(probability + (accuracy - 0.5) / 4, 0.0, 1.0))
        return {"loss": loss}


@on_two_replicas
@pytest.mark.parametrize(
    ("mean_of", "num_texts"), [(tf.reduce_mean, 1), (kerasdist.global_mean, 0)], ids=["own", "all"]
)
def test_a_state_that_differs_after_steps_that_were_alike_is_named(strategy, mean_of, num_texts):
    rng = np.random.default_rng(0)
    # All are taken for wrong ones in the first batch, and for real ones in the last.
    x = np.concatenate([np.full((8, 3), -1.0), rng.normal(size=(32, 3)), np.ones((80, 3))])
    with strategy.scope():
        model = Adaptive(mean_of)
        model(x[:2])
        model.compile(keras.optimizers.SGD(0.001))

    texts = warned_by(lambda: model.fit(x, batch_size=8, epochs=2, shuffle=False, verbose=0))

    assert len(texts) == num_texts
    assert all("to the state 'augmenter.probability' is not the same" in each for each in texts)
    copies = strategy.experimental_local_results(model.augmenter.probability)
    assert [each.numpy() for each in copies] == [1.0, 1.0]
