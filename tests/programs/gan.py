"""In the manner of Keras' example of a DCGAN: two networks, two optimizers, `compile` overridden.

The example draws its noise in the train_step; where replicas are to be compared, the noise stands
beside the images.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

LATENT_DIM = 6


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def draw(self, batch_size):
        shape = (batch_size, self.latent_dim)
        return keras.random.normal(shape=shape, seed=self.seed_generator)

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images, noise, misleading_noise = real_images
        else:
            noise = misleading_noise = None
        batch_size = keras.ops.shape(real_images)[0]
        random_latent_vectors = self.draw(batch_size) if noise is None else noise
        generated_images = self.generator(random_latent_vectors)
        combined_images = keras.ops.concatenate([generated_images, real_images], axis=0)
        labels = keras.ops.concatenate(
            [keras.ops.ones((batch_size, 1)), keras.ops.zeros((batch_size, 1))], axis=0
        )
        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )
        random_latent_vectors = self.draw(batch_size) if noise is None else misleading_noise
        misleading_labels = keras.ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(random_latent_vectors))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class GANMonitor(keras.callbacks.Callback):
    def __init__(self, num_img=3, latent_dim=LATENT_DIM):
        super().__init__()
        self.latent_vectors = np.random.default_rng(1).normal(size=(num_img, latent_dim))
        self.images = []

    def on_epoch_end(self, epoch, logs=None):
        generated_images = self.model.generator(self.latent_vectors)
        self.images.append(keras.ops.convert_to_numpy(generated_images))


def make_discriminator():
    return keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            keras.layers.Conv2D(4, kernel_size=4, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ],
        name="discriminator",
    )


def make_generator():
    return keras.Sequential(
        [
            keras.Input(shape=(LATENT_DIM,)),
            keras.layers.Dense(4 * 4 * 4),
            keras.layers.Reshape((4, 4, 4)),
            keras.layers.Conv2DTranspose(4, kernel_size=4, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Conv2D(1, kernel_size=5, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(11)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(37, 8, 8, 1)).astype("float32")
    noise = rng.normal(size=(2, 37, LATENT_DIM)).astype("float32")
    data = (images, noise[0], noise[1]) if comparable else images
    dataset = tf.data.Dataset.from_tensor_slices(data).shuffle(buffer_size=64).batch(8)
    with scope(strategy):
        gan = GAN(make_discriminator(), make_generator(), LATENT_DIM)
        gan.compile(
            d_optimizer=keras.optimizers.Adam(learning_rate=0.001),
            g_optimizer=keras.optimizers.Adam(learning_rate=0.001),
            loss_fn=keras.losses.BinaryCrossentropy(),
        )
    monitor = GANMonitor()
    history = gan.fit(dataset, epochs=2, callbacks=[monitor])
    return {"history": history.history, "images": monitor.images, "weights": gan.get_weights()}
