"""In the manner of Keras' guide to a train_step of one's own: three ways to write one.

`compute_loss` and the compiled metrics; a loss and metrics of one's own, reset through `metrics`;
sample weights, with a test_step beside the train_step.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply(gradients, trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


class ModelWithOwnMetrics(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        trainable_vars = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, trainable_vars), trainable_vars)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


class ModelWithWeights(keras.Model):
    def train_step(self, data):
        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        trainable_vars = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, trainable_vars), trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def make(cls):
    inputs = keras.Input(shape=(32,))
    return cls(inputs, keras.layers.Dense(1)(inputs))


def run(strategy):
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x = rng.random((53, 32)).astype("float32")
    y = rng.random((53, 1)).astype("float32")
    sample_weight = rng.random((53, 1)).astype("float32")
    with scope(strategy):
        model = make(CustomModel)
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])
        with_metrics = make(ModelWithOwnMetrics)
        with_metrics.compile(optimizer="adam")
        with_weights = make(ModelWithWeights)
        with_weights.compile(optimizer="adam", loss="mse", metrics=["mae"])
    histories = [
        model.fit(x, y, epochs=3).history,
        with_metrics.fit(x, y, epochs=5).history,
        with_weights.fit(x, y, sample_weight=sample_weight, epochs=3).history,
    ]
    return {
        "histories": histories,
        "scores": with_weights.evaluate(x, y),
        "weights": [each.get_weights() for each in (model, with_metrics, with_weights)],
    }
