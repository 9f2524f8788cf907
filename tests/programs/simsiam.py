"""In the manner of Keras' example of SimSiam: two views, an encoder and a predictor, no labels.

The gradient of both networks in one call of the tape, a cosine schedule of the learning rate.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

PROJECT_DIM = 8


def get_encoder(synchronized):
    inputs = keras.layers.Input((8, 8, 3))
    x = keras.layers.Rescaling(scale=1.0 / 127.5, offset=-1)(inputs)
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dense(PROJECT_DIM, use_bias=False)(x)
    x = keras.layers.BatchNormalization(synchronized=synchronized)(x)
    x = keras.layers.ReLU()(x)
    return keras.Model(inputs, keras.layers.Dense(PROJECT_DIM)(x), name="encoder")


def get_predictor(synchronized):
    regularizer = keras.regularizers.l2(0.0005)
    return keras.Sequential(
        [
            keras.layers.Input((PROJECT_DIM,)),
            keras.layers.Dense(4, use_bias=False, kernel_regularizer=regularizer),
            keras.layers.ReLU(),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Dense(PROJECT_DIM),
        ],
        name="predictor",
    )


def compute_loss(p, z):
    z = tf.stop_gradient(z)
    p = tf.math.l2_normalize(p, axis=1)
    z = tf.math.l2_normalize(z, axis=1)
    return -tf.reduce_mean(tf.reduce_sum((p * z), axis=1))


class SimSiam(keras.Model):
    def __init__(self, encoder, predictor):
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        ds_one, ds_two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(ds_one), self.encoder(ds_two)
            p1, p2 = self.predictor(z1), self.predictor(z2)
            loss = compute_loss(p1, z2) / 2 + compute_loss(p2, z1) / 2
        learnable_params = self.encoder.trainable_variables + self.predictor.trainable_variables
        gradients = tape.gradient(loss, learnable_params)
        self.optimizer.apply_gradients(zip(gradients, learnable_params, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def flip_and_shift(image, seed):
    image = tf.image.stateless_random_flip_left_right(image, seed=(seed, 1))
    return tf.image.stateless_random_brightness(image, 20.0, seed=(seed, 2))


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(30)
    x_train = np.random.default_rng(0).uniform(0, 255, size=(37, 8, 8, 3)).astype("float32")
    views = []
    for seed in (1, 2):
        view = tf.data.Dataset.from_tensor_slices(x_train).shuffle(64, seed=26)
        view = view.map(lambda image, seed=seed: flip_and_shift(image, seed), tf.data.AUTOTUNE)
        views.append(view.batch(8).prefetch(tf.data.AUTOTUNE))
    ssl_ds = tf.data.Dataset.zip(tuple(views))
    lr_decayed_fn = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.03, decay_steps=10
    )
    early_stopping = keras.callbacks.EarlyStopping(
        monitor="loss", patience=5, restore_best_weights=True
    )
    with scope(strategy):
        simsiam = SimSiam(get_encoder(comparable), get_predictor(comparable))
        simsiam.compile(optimizer=keras.optimizers.SGD(lr_decayed_fn, momentum=0.6))
    history = simsiam.fit(ssl_ds, epochs=2, callbacks=[early_stopping])

    with scope(strategy):
        # The evaluation: a classifier over the frozen encoder.
        backbone = keras.Model(simsiam.encoder.input, simsiam.encoder.layers[-4].output)
        backbone.trainable = False
        inputs = keras.layers.Input((8, 8, 3))
        outputs = keras.layers.Dense(4, activation="softmax")(backbone(inputs, training=False))
        linear_model = keras.Model(inputs, outputs, name="linear_model")
        linear_model.compile(
            loss="sparse_categorical_crossentropy", metrics=["accuracy"], optimizer="adam"
        )
    labels = np.arange(37) % 4
    linear = linear_model.fit(x_train, labels, batch_size=8, epochs=2)
    return {
        "histories": [history.history, linear.history],
        "weights": [simsiam.get_weights(), linear_model.get_weights()],
    }
