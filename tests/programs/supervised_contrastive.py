"""In the manner of Keras' example of supervised contrastive learning: a loss that is only called.

The loss of the encoder has a `__call__` of its own, which compares every example of the batch with
every other. A classifier then trains on top of the frozen encoder. The example takes the comparison
from TensorFlow Addons.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import epsilon, scope

INPUT_SHAPE = (8, 8, 3)


def npairs_loss(labels, similarities):
    is_same = tf.cast(labels[:, None] == labels[None], similarities.dtype)
    is_same /= tf.reduce_sum(is_same, axis=1, keepdims=True)
    losses = tf.nn.softmax_cross_entropy_with_logits(logits=similarities, labels=is_same)
    return tf.reduce_mean(losses)


class SupervisedContrastiveLoss(keras.losses.Loss):
    def __init__(self, temperature=1, name=None):
        super().__init__(name=name)
        self.temperature = temperature

    # As in the example: Keras' own names them otherwise.
    def __call__(self, labels, feature_vectors, sample_weight=None):  # ty: ignore[lost-keyword-for-regular-parameter]
        vectors = tf.math.l2_normalize(feature_vectors, axis=1)
        similarities = tf.matmul(vectors, tf.transpose(vectors)) / self.temperature
        return npairs_loss(tf.squeeze(labels), similarities)


def create_encoder():
    inputs = keras.Input(shape=INPUT_SHAPE)
    x = keras.layers.Conv2D(4, 3, strides=2, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Flatten()(x), name="encoder")


def add_projection_head(encoder):
    inputs = keras.Input(shape=INPUT_SHAPE)
    outputs = keras.layers.Dense(6, activation="relu")(encoder(inputs))
    return keras.Model(inputs, outputs, name="encoder_with_projection_head")


def create_classifier(encoder, dropout_rate):
    for layer in encoder.layers:
        layer.trainable = False
    inputs = keras.Input(shape=INPUT_SHAPE)
    features = keras.layers.Dropout(dropout_rate)(encoder(inputs))
    outputs = keras.layers.Dense(3, activation="softmax")(features)
    return keras.Model(inputs, outputs, name="classifier")


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(49)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(45, *INPUT_SHAPE)).astype("float32")
    labels = rng.integers(0, 3, size=(45, 1))
    x_train, y_train, x_test, y_test = images[:38], labels[:38], images[38:], labels[38:]
    with scope(strategy):
        encoder = create_encoder()
        encoder_with_projection_head = add_projection_head(encoder)
        encoder_with_projection_head.compile(
            optimizer=keras.optimizers.Adam(0.001, epsilon=epsilon(comparable)),
            loss=SupervisedContrastiveLoss(0.05),
        )
    pretraining = encoder_with_projection_head.fit(x=x_train, y=y_train, batch_size=8, epochs=2)

    with scope(strategy):
        classifier = create_classifier(encoder, 0.0 if comparable else 0.5)
        classifier.compile(
            optimizer=keras.optimizers.Adam(0.001, epsilon=epsilon(comparable)),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    training = classifier.fit(x=x_train, y=y_train, batch_size=8, epochs=2)
    return {
        "histories": [pretraining.history, training.history],
        "scores": classifier.evaluate(x_test, y_test),
        "weights": [encoder_with_projection_head.get_weights(), classifier.get_weights()],
    }
