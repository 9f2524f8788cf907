"""In the manner of Keras' example of MixUp: two shuffled datasets zipped and mixed by a `map`."""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

BATCH_SIZE = 8


def sample_beta_distribution(size, concentration_0=0.2, concentration_1=0.2):
    gamma_1_sample = tf.random.gamma(shape=[size], alpha=concentration_1)
    gamma_2_sample = tf.random.gamma(shape=[size], alpha=concentration_0)
    return gamma_1_sample / (gamma_1_sample + gamma_2_sample)


def mix_up(ds_one, ds_two, alpha=0.2):
    images_one, labels_one = ds_one
    images_two, labels_two = ds_two
    batch_size = keras.ops.shape(images_one)[0]
    lam = sample_beta_distribution(batch_size, alpha, alpha)
    x_l = keras.ops.reshape(lam, (batch_size, 1, 1, 1))
    y_l = keras.ops.reshape(lam, (batch_size, 1))
    images = images_one * x_l + images_two * (1 - x_l)
    labels = labels_one * y_l + labels_two * (1 - y_l)
    return images, labels


def get_training_model():
    return keras.Sequential(
        [
            keras.layers.Input(shape=(8, 8, 1)),
            keras.layers.Conv2D(4, (5, 5), strides=(2, 2), activation="relu"),
            keras.layers.SpatialDropout2D(0.0),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def run(strategy):
    keras.utils.set_random_seed(40)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(53, 8, 8, 1)).astype("float32")
    y = keras.ops.one_hot((x.mean(axis=(1, 2, 3)) * 40).astype(int) % 3, 3)
    train = tf.data.Dataset.from_tensor_slices((x[:37], y[:37]))
    train_ds_one = train.shuffle(BATCH_SIZE * 100).batch(BATCH_SIZE)
    train_ds_two = train.shuffle(BATCH_SIZE * 100).batch(BATCH_SIZE)
    train_ds = tf.data.Dataset.zip((train_ds_one, train_ds_two))
    train_ds_mu = train_ds.map(
        lambda ds_one, ds_two: mix_up(ds_one, ds_two, alpha=0.2),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    val_ds = tf.data.Dataset.from_tensor_slices((x[37:], y[37:])).batch(BATCH_SIZE)
    with scope(strategy):
        model = get_training_model()
        initial_weights = model.get_weights()
        model.compile(
            loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
            optimizer="adam",
            metrics=["accuracy"],
        )
    mixed = model.fit(train_ds_mu, validation_data=val_ds, epochs=2)
    weights = model.get_weights()
    with scope(strategy):
        model = get_training_model()
        model.set_weights(initial_weights)
        model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    # Without MixUp, on one of the two.
    alone = model.fit(train_ds_one, validation_data=val_ds, epochs=2)
    return {
        "histories": [mixed.history, alone.history],
        "weights": [weights, model.get_weights()],
    }
