"""What is created outside the scope is named before the first step."""

import keras
import numpy as np
import pytest

from tests import strategies
from tests.strategies import each_replicated_strategy

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def make_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@each_replicated_strategy
def test_a_model_from_outside_the_scope(strategy):
    model = make_model()
    with strategy.scope():
        model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match="model that it trains was not"):
        model.fit(X, Y, verbose=0)


@each_replicated_strategy
def test_compile_outside_the_scope(strategy):
    with strategy.scope():
        model = make_model()
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match=r"optimizer of model '.*' was created outside"):
        model.fit(X, Y, verbose=0)


@each_replicated_strategy
def test_a_metric_from_outside_the_scope(strategy):
    metric = keras.metrics.MeanAbsoluteError(name="outsider")
    with strategy.scope():
        model = make_model()
        model.compile("sgd", "mse", metrics=[metric])

    with pytest.raises(RuntimeError, match=r"'outsider/.*outside its strategy's scope"):
        model.fit(X, Y, verbose=0)


@each_replicated_strategy
def test_layers_from_another_strategys_scope(strategy):
    other = strategies.get("one device")
    with other.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 3))
    with strategy.scope():
        model = keras.Sequential([layer])
        model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match=r"'dense.*/kernel' .* outside its strategy's scope"):
        model.fit(X, Y, verbose=0)
