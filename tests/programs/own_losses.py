"""Train steps that reduce the loss themselves, in the ways that published programs do it.

A mean of per-example losses, a sum divided by the size of the batch, functions of Keras and
TensorFlow, per-example losses put into a Mean. All of them mean the mean over the examples.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

none_loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
sum_loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")


def mean_of_none(y, logits):
    return tf.reduce_mean(none_loss(y, logits))


def sum_by_batch_size(y, logits):
    return sum_loss(y, logits) / tf.cast(tf.shape(y)[0], tf.float32)


def function_of_keras(y, logits):
    return tf.reduce_mean(keras.losses.binary_crossentropy(y, logits, from_logits=True))


def function_of_tensorflow(y, logits):
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
    return keras.ops.mean(keras.ops.sum(losses, axis=-1))


class Classifier(keras.Model):
    def __init__(self, loss_of_batch):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.logits = keras.layers.Dense(1)
        self.loss_of_batch = loss_of_batch
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.examples_tracker = keras.metrics.Mean(name="mean_of_examples")

    @property
    def metrics(self):
        return [self.loss_tracker, self.examples_tracker]

    def call(self, x):
        return self.logits(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.loss_of_batch(y, logits)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        self.examples_tracker.update_state(none_loss(y, logits))
        return {metric.name: metric.result() for metric in self.metrics}


def run(strategy):
    keras.utils.set_random_seed(4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 6)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    results = {}
    for loss in (mean_of_none, sum_by_batch_size, function_of_keras, function_of_tensorflow):
        with scope(strategy):
            model = Classifier(loss)
            model.compile(optimizer=keras.optimizers.SGD(0.5))
        history = model.fit(x, y, batch_size=8, epochs=2)
        results[loss.__name__] = {"history": history.history, "weights": model.get_weights()}
    return results
