"""What is no model of ours goes by, though the routes are laid."""

import keras
import numpy as np
import pytest
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from tests.strategies import each_kind_of_strategy, each_strategy

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


class TrainerWithoutModel(TensorFlowTrainer, keras.layers.Layer):
    """Trains, and is no `keras.Model`."""

    def __init__(self):
        keras.layers.Layer.__init__(self)
        TensorFlowTrainer.__init__(self)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


@each_strategy
def test_a_trainer_that_is_no_model(strategy):
    assert strategy is not None  # It has laid the routes.
    trainer = TrainerWithoutModel()
    trainer.compile("sgd", "mse")
    trainer.fit(X, Y, verbose=0)

    assert trainer.predict(X, verbose=0).shape == (8, 1)
    assert trainer.evaluate(X, Y, verbose=0) == pytest.approx(trainer.test_on_batch(X, Y))


class OwnLoop:
    """Somebody's model, of another library."""

    stop_training = False


@each_kind_of_strategy
def test_a_callback_list_of_somebodys_own_loop(strategy):
    assert strategy is not None
    seen, loop = [], OwnLoop()
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs))

    with strategy.scope():
        callbacks = keras.callbacks.CallbackList([callback], model=loop, epochs=1)
        callbacks.on_epoch_end(0, {"loss": 1.0})

    assert type(callbacks) is keras.callbacks.CallbackList
    assert callback.model is loop
    assert seen == [{"loss": 1.0}]
