"""In the manner of Keras' example of a variational autoencoder: a Sampling layer, no `call`."""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

LATENT_DIM = 2


class Sampling(keras.layers.Layer):
    """Draws z from (mean, log of variance); `noise_scale` 0 leaves the mean."""

    def __init__(self, noise_scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.noise_scale = noise_scale
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        batch = keras.ops.shape(z_mean)[0]
        dim = keras.ops.shape(z_mean)[1]
        epsilon = keras.random.normal(shape=(batch, dim), seed=self.seed_generator)
        return z_mean + keras.ops.exp(0.5 * z_log_var) * epsilon * self.noise_scale


def make_encoder(noise_scale):
    encoder_inputs = keras.Input(shape=(8, 8, 1))
    x = keras.layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(8, activation="relu")(x)
    z_mean = keras.layers.Dense(LATENT_DIM, name="z_mean")(x)
    z_log_var = keras.layers.Dense(LATENT_DIM, name="z_log_var")(x)
    z = Sampling(noise_scale)([z_mean, z_log_var])
    return keras.Model(encoder_inputs, [z_mean, z_log_var, z], name="encoder")


def make_decoder():
    latent_inputs = keras.Input(shape=(LATENT_DIM,))
    x = keras.layers.Dense(4 * 4 * 4, activation="relu")(latent_inputs)
    x = keras.layers.Reshape((4, 4, 4))(x)
    x = keras.layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
    x = keras.layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model(latent_inputs, x, name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [
            self.total_loss_tracker,
            self.reconstruction_loss_tracker,
            self.kl_loss_tracker,
        ]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            reconstruction = self.decoder(z)
            losses = keras.losses.binary_crossentropy(data, reconstruction)
            reconstruction_loss = keras.ops.mean(keras.ops.sum(losses, axis=(1, 2)))
            kl_loss = -0.5 * (1 + z_log_var - keras.ops.square(z_mean) - keras.ops.exp(z_log_var))
            kl_loss = keras.ops.mean(keras.ops.sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(10)
    digits = np.random.default_rng(0).uniform(size=(37, 8, 8, 1)).astype("float32")
    with scope(strategy):
        vae = VAE(make_encoder(0.0 if comparable else 1.0), make_decoder())
        vae.compile(optimizer=keras.optimizers.Adam())
    history = vae.fit(digits, epochs=3, batch_size=9)
    z_mean, _, _ = vae.encoder.predict(digits)
    return {
        "history": history.history,
        "z_mean": z_mean,
        "decoded": vae.decoder.predict(np.array([[0.5, -1.0]])),
        "weights": vae.get_weights(),
    }
