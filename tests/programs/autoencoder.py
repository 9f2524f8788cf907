"""In the manner of Keras' example of denoising images: a convolutional autoencoder, fit twice.

The last batch has 1 example, and single images are predicted.
"""

import keras
import numpy as np

from tests.programs.scope import scope


def preprocess(array):
    return np.reshape(array.astype("float32") / 255.0, (len(array), 8, 8, 1))


def noise(array, rng):
    noisy_array = array + 0.4 * rng.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0)


def make_autoencoder():
    inputs = keras.Input(shape=(8, 8, 1))
    x = keras.layers.Conv2D(4, (3, 3), activation="relu", padding="same")(inputs)
    x = keras.layers.MaxPooling2D((2, 2), padding="same")(x)
    x = keras.layers.Conv2D(4, (3, 3), activation="relu", padding="same")(x)
    x = keras.layers.MaxPooling2D((2, 2), padding="same")(x)
    x = keras.layers.Conv2DTranspose(4, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = keras.layers.Conv2DTranspose(4, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = keras.layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
    autoencoder = keras.Model(inputs, x)
    autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
    return autoencoder


def run(strategy):
    keras.utils.set_random_seed(18)
    rng = np.random.default_rng(0)
    train_data = preprocess(rng.integers(0, 256, size=(33, 8, 8)))
    test_data = preprocess(rng.integers(0, 256, size=(17, 8, 8)))
    noisy_train_data, noisy_test_data = noise(train_data, rng), noise(test_data, rng)
    with scope(strategy):
        autoencoder = make_autoencoder()
    clean = autoencoder.fit(
        x=train_data,
        y=train_data,
        epochs=2,
        batch_size=8,
        shuffle=True,
        validation_data=(test_data, test_data),
    )
    predictions = autoencoder.predict(test_data)
    noisy = autoencoder.fit(
        x=noisy_train_data,
        y=train_data,
        epochs=2,
        batch_size=8,
        shuffle=True,
        validation_data=(noisy_test_data, test_data),
        validation_batch_size=8,
    )
    return {
        "histories": [clean.history, noisy.history],
        "predictions": predictions,
        "one image": autoencoder.predict(noisy_test_data[:1]),
        "one called": keras.ops.convert_to_numpy(autoencoder(noisy_test_data[:1])),
        "weights": autoencoder.get_weights(),
    }
