"""A function of the InputContext stands in the place of data, everywhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies import each_kind_of_strategy, each_strategy

BATCH_SIZE = 8
X = np.random.default_rng(0).normal(size=(37, 3)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True)).astype("float32")


def dataset(context=None):
    batch_size = context.get_per_replica_batch_size(BATCH_SIZE) if context else BATCH_SIZE
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def make_model(strategy):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def everything(model, data) -> list:
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=data).history
    return [
        history["loss"],
        history["val_loss"],
        model.evaluate(data, verbose=0),
        model.predict(data, verbose=0),
    ]


@each_strategy
def test_makes_the_global_batches(strategy):
    model, truth = make_model(strategy), make_model(tf.distribute.get_strategy())

    pairs = zip(everything(model, dataset), everything(truth, dataset()), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@each_kind_of_strategy
def test_must_return_a_dataset(strategy):
    with pytest.raises(TypeError, match=r"must return a tf.data.Dataset of batches. Received: 3"):
        make_model(strategy).fit(lambda context: 3, verbose=0)
