"""Which train_step a model trains with."""

import keras
import numpy as np
import tensorflow as tf

from tests.plain import check_as_plain
from tests.strategies import each_strategy

X = np.arange(20, dtype="float32").reshape(10, 2) / 20


@each_strategy
def test_a_train_step_may_be_given_to_a_model(strategy):
    def make():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

        def train_step(data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x, y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return {"loss": loss}

        model.train_step = train_step
        return model

    check_as_plain(
        strategy,
        make,
        lambda model: model.fit(X, X[:, :1], batch_size=5, shuffle=False, verbose=0).history,
    )
