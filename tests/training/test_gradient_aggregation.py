"""The update with the gradient of the global batch: what it leaves behind."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training import gradient_aggregation
from tests import strategies


def test_an_update_lets_go_of_its_optimizer_and_gradients():
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)

    assert vars(gradient_aggregation._local) == {}


def weights_of_a_given_step(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile("sgd", "mse")

    def train_step(data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return {"loss": loss}

    model.train_step = train_step
    x = np.arange(20, dtype="float32").reshape(10, 2) / 20
    model.fit(x, x[:, :1], batch_size=5, shuffle=False, verbose=0)
    return model.get_weights()[0]


def test_a_train_step_that_a_model_was_given_equals_one_device():
    ours, truth = (weights_of_a_given_step(strategies.get(n)) for n in ("2 replicas", "one device"))

    np.testing.assert_allclose(ours, truth, atol=1e-6, rtol=0)
