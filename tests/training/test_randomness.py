"""Dropout drops other units on other replicas, and the same ones in every run with one seed."""

import keras
import numpy as np

from tests.strategies import each_replicated_strategy


class Recorder(keras.layers.Layer):
    """Adds what it sees of the first example to a variable of its replica."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=input_shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign(inputs[0])
        return inputs


def masks(strategy, seed=5):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        recorder = Recorder()
        model = keras.Sequential(
            [keras.Input((50,)), keras.layers.Dropout(0.5), recorder, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    ones = np.ones((16, 50), "float32")
    model.fit(ones, ones[:, :1], batch_size=16, verbose=0)
    replicas = strategy.experimental_local_results(recorder.seen.value)
    return np.stack([replica.numpy() for replica in replicas])


@each_replicated_strategy
def test_every_replica_has_a_mask_of_its_own(strategy):
    assert len(np.unique(masks(strategy), axis=0)) == strategy.num_replicas_in_sync


@each_replicated_strategy
def test_masks_come_from_the_seed(strategy):
    assert np.array_equal(masks(strategy), masks(strategy))
    assert not np.array_equal(masks(strategy), masks(strategy, seed=6))
