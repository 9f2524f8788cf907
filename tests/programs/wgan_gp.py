"""In the manner of Keras' example of a WGAN-GP: a gradient penalty, several steps of the critic.

The noise and the mixtures stand beside the images where replicas are to be compared.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

NOISE_DIM = 4


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, discriminator_extra_steps=3):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_steps = discriminator_extra_steps
        self.gp_weight = 10.0

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, alpha, real_images, fake_images):
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, data):
        noise = None
        if isinstance(data, tuple):
            # Beside the images, what the example draws here.
            data, noise, alpha = data
        real_images = data
        batch_size = tf.shape(real_images)[0]
        for i in range(self.d_steps):
            if noise is None:
                latent = tf.random.normal(shape=(batch_size, self.latent_dim))
                mix = tf.random.uniform([batch_size, 1, 1, 1], 0.0, 1.0)
            else:
                latent, mix = noise[:, i], alpha[:, i]
            with tf.GradientTape() as tape:
                fake_images = self.generator(latent, training=True)
                fake_logits = self.discriminator(fake_images, training=True)
                real_logits = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real_logits, fake_img=fake_logits)
                gp = self.gradient_penalty(mix, real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(
                zip(d_gradient, self.discriminator.trainable_variables, strict=True)
            )
        if noise is None:
            latent = tf.random.normal(shape=(batch_size, self.latent_dim))
        else:
            latent = noise[:, self.d_steps]
        with tf.GradientTape() as tape:
            generated_images = self.generator(latent, training=True)
            g_loss = self.g_loss_fn(self.discriminator(generated_images, training=True))
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(
            zip(gen_gradient, self.generator.trainable_variables, strict=True)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


def make_discriminator(dropout):
    img_input = keras.Input(shape=(8, 8, 1))
    x = keras.layers.ZeroPadding2D((1, 1))(img_input)
    x = keras.layers.Conv2D(4, (5, 5), strides=(2, 2), padding="same")(x)
    x = keras.layers.LeakyReLU(negative_slope=0.2)(x)
    x = keras.layers.Dropout(dropout)(keras.layers.Flatten()(x))
    return keras.Model(img_input, keras.layers.Dense(1)(x), name="discriminator")


def make_generator(synchronized):
    noise = keras.Input(shape=(NOISE_DIM,))
    x = keras.layers.Dense(4 * 4 * 4, use_bias=False)(noise)
    x = keras.layers.BatchNormalization(synchronized=synchronized)(x)
    x = keras.layers.LeakyReLU(0.2)(x)
    x = keras.layers.UpSampling2D((2, 2))(keras.layers.Reshape((4, 4, 4))(x))
    x = keras.layers.Conv2D(1, (3, 3), padding="same", use_bias=False, activation="tanh")(x)
    return keras.Model(noise, x, name="generator")


def discriminator_loss(real_img, fake_img):
    return tf.reduce_mean(fake_img) - tf.reduce_mean(real_img)


def generator_loss(fake_img):
    return -tf.reduce_mean(fake_img)


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(12)
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, size=(36, 8, 8, 1)).astype("float32")
    data = images
    if comparable:
        noise = rng.normal(size=(36, 4, NOISE_DIM)).astype("float32")
        alpha = rng.uniform(size=(36, 3, 1, 1, 1)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((images, noise, alpha)).batch(12)
    with scope(strategy):
        wgan = WGAN(
            discriminator=make_discriminator(0.0 if comparable else 0.3),
            generator=make_generator(comparable),
            latent_dim=NOISE_DIM,
        )
        wgan.compile(
            d_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
            g_optimizer=keras.optimizers.Adam(learning_rate=0.0002, beta_1=0.5, beta_2=0.9),
            g_loss_fn=generator_loss,
            d_loss_fn=discriminator_loss,
        )
    history = wgan.fit(data, batch_size=None if comparable else 12, epochs=2)
    return {"history": history.history, "weights": wgan.get_weights()}
