"""tf_keras is refused in our scopes, and nowhere else."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.context import legacy_keras
from tests.libraries.examples import needs
from tests.strategies import each_kind_of_strategy

pytestmark = needs("tf_keras")

X = np.ones((4, 1), "float32")


def make():
    tf_keras = importlib.import_module("tf_keras")
    return tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,), name="dense")])


@pytest.mark.parametrize(
    ("value", "remedy"), [("1", "TF_USE_LEGACY_KERAS=1 makes it what"), ("0", "Make it with `imp")]
)
@each_kind_of_strategy
def test_a_model_of_keras_2_is_refused_in_the_scope(strategy, monkeypatch, value, remedy):
    monkeypatch.setenv(legacy_keras.VARIABLE, value)

    with strategy.scope():
        model = make()
        with pytest.raises(RuntimeError, match=rf"is one of tf_keras \(Keras 2\), .* {remedy}"):
            model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="is one of tf_keras"):
        model.fit(X, X, verbose=0)


@each_kind_of_strategy
def test_outside_of_it_one_trains(strategy):
    with strategy.scope():
        make()
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = make()
        model.compile("sgd", "mse")

    assert len(model.fit(X, X, verbose=0).history["loss"]) == 1
