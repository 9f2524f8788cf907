"""Workers whose weights or learning rates differ. Over a cluster: cluster/test_several_workers."""

import keras
import numpy as np
import pytest

from kerasdist.training import peers
from kerasdist.training.report.drift import warn_of_drift
from tests import strategies


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


def test_every_optimizer_is_looked_at(model, others):
    model.others = {"critic": keras.optimizers.SGD(0.1)}
    others |= {-1: 2.0}

    with pytest.warns(UserWarning, match="they differ in the learning rate. What"):
        assert warn_of_drift(model, 0)


def test_states_that_no_optimizer_trains_are_looked_at(model, others):
    model.add(keras.layers.Dense(2, name="teacher", kernel_initializer="ones", trainable=False))
    others |= {2: 2.0}

    with pytest.warns(UserWarning, match="they differ in '.*teacher/kernel'. What"):
        assert warn_of_drift(model, 0)


def test_a_model_need_not_have_weights_or_an_optimizer(model, others):
    model.trainable = False
    model.optimizer = None

    assert not warn_of_drift(model, 0)
