"""Data of which tf.data does not know the rank, as of a `py_function` without `set_shape`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy

X = np.random.default_rng(0).normal(size=(23, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def twice(x):
    return tf.py_function(lambda x: 2 * x, [x], tf.float32)


class Flat(keras.Model):
    """Knows its shapes by itself."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 6))
        self.built = True

    def call(self, x):
        return self.dense(tf.reshape(x, [-1, 6]))


@each_strategy
@pytest.mark.parametrize("run_eagerly", [False, *exhaustive(True)])
def test_inputs_of_unknown_rank(strategy, run_eagerly):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (twice(x), y)).batch(5)

    def make():
        model = Flat()
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=run_eagerly)
        return model

    def run(model):
        history = model.fit(data, epochs=2, shuffle=False, validation_data=data, verbose=0).history
        return history, model.evaluate(data, verbose=0), model.predict(data, verbose=0)

    check_as_plain(strategy, make, run)
