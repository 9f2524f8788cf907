"""Models that keep what Keras does not save, or that Keras itself would not save, are resumed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import Checkpoint
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy
from tests.warned import warned_by


class Autoencoder(keras.Model):
    """A model without `call` that adds noise from a generator of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Dense(3, "tanh")])
        self.decoder = keras.Sequential([keras.layers.Dense(6)])
        self.noise = tf.random.Generator.from_seed(3)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            decoded = self.decoder(self.encoder(data + self.noise.normal([6])))
            loss = tf.reduce_mean(tf.square(decoded - data))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@each_kind_of_strategy
def test_a_model_that_nobody_calls_goes_on_with_its_generator(strategy, tmp_path):
    x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")

    def run(folder, epochs):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = Autoencoder()
            model.compile("adam")
        saving = Checkpoint(folder, every_steps=4)
        model.fit(x, batch_size=8, shuffle=False, epochs=epochs, verbose=0, callbacks=[saving])
        return model.get_weights()

    truth = run(tmp_path / "whole", 2)
    run(tmp_path / "parts", 1)

    for found, expected in zip(run(tmp_path / "parts", 2), truth, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


class StopAt(keras.callbacks.Callback):
    """Ends `fit` after a step, as a crash does."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError


def test_a_variable_that_a_checkpoint_does_not_hold_is_named(tmp_path, capsys):
    def run(*variables):
        with strategies.get("one device").scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
            model.memory = list(variables)
            model.compile("sgd", "mse")
        x = np.ones([16, 6])
        saving = [Checkpoint(tmp_path)]
        epochs = 1 + len(variables)
        return model.fit(x, x, batch_size=8, epochs=epochs, verbose=0, callbacks=saving).epoch

    run()

    assert run(tf.Variable(1.0)) == [0, 1]
    assert "does not hold 'memory', which begin anew" in "".join(capsys.readouterr())


def test_metrics_are_found_by_their_names(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")

    def run(folder, metrics, *others):
        keras.utils.set_random_seed(1)
        with strategies.get("one device").scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
            model.compile("sgd", "mse", metrics=metrics)
        saving = [Checkpoint(folder, every_steps=2), *others]
        return model.fit(x, x, batch_size=8, shuffle=False, verbose=0, callbacks=saving).history

    truth = run(tmp_path / "whole", ["mae", "mape", "msle"])
    with pytest.raises(InterruptedError):
        run(tmp_path / "parts", ["mae", "mape"], StopAt(5))
    found = run(tmp_path / "parts", ["mape", "msle", "mae"])

    for name in ("loss", "mae", "mape"):
        np.testing.assert_allclose(found[name], truth[name], rtol=1e-5)
    assert "does not hold the metrics msle: in this epoch" in "".join(capsys.readouterr())


OF_SCRIPT = {}


class TakesOptimizers(keras.Model):
    """Trains one layer with its own optimizer, and the other with one of the script."""

    def __init__(self, held=None):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)
        self.held = held

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply(gradients[:2], weights[:2])
        OF_SCRIPT["optimizer"].apply(gradients[2:], weights[2:])
        return {"loss": loss}


class Holder:
    def __init__(self, held):
        self.held = held


@pytest.mark.parametrize(("hold", "num_told"), [*exhaustive((None, 1)), (list, 0), (Holder, 1)])
def test_an_optimizer_that_keras_does_not_save_is_told_once(hold, num_told, tmp_path):
    with strategies.get("one device").scope():
        optimizer = OF_SCRIPT["optimizer"] = keras.optimizers.Adam(name="of_script")
        model = TakesOptimizers(held=hold and hold([optimizer]))
        model.compile("adam", "mse")
    x = np.ones((8, 2), "float32")

    callbacks = [Checkpoint(tmp_path, every_steps=1)]
    fit = {"batch_size": 2, "shuffle": False, "epochs": 2, "verbose": 0, "callbacks": callbacks}

    texts = warned_by(lambda: model.fit(x, x[:, :1], **fit))

    told = "an optimizer that the model does not hold ('of_script')"
    assert sum(told in text for text in texts) == num_told
