"""Which optimizers the steps of a model have called."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.hooks import called_optimizers
from tests.strategies import on_two_replicas

X = np.ones((4, 2), "float32")


class TakesOne(keras.Model):
    """Trains with an optimizer that it does not hold."""

    def __init__(self, take):
        super().__init__()
        self.dense, self._take = keras.layers.Dense(1), take

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0]) ** 2)
        weights = self.trainable_weights
        self._take().apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@on_two_replicas
def test_an_optimizer_from_anywhere_is_known_to_train_the_model(strategy):
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
        models = [TakesOne(lambda: optimizer), TakesOne(lambda: keras.optimizers.SGD())]
        for model in models:
            model.compile()
            model(X)

    assert called_optimizers.of(models[0]) == []
    models[0].fit(X, X[:, :1], verbose=0)

    assert called_optimizers.of(models[0]) == [optimizer]
    assert called_optimizers.of(models[1]) == []
