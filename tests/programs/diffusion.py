"""In the manner of Keras' example of denoising diffusion: an average of the network, no `call`.

A normalizer is adapted after `compile`, a metric samples images in test_step, a callback plots.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.programs.scope import scope

SIZE = 8


@keras.saving.register_keras_serializable(package="diffusion")
def sinusoidal_embedding(x):
    frequencies = keras.ops.exp(keras.ops.linspace(keras.ops.log(1.0), keras.ops.log(100.0), 4))
    angular_speeds = keras.ops.cast(2.0 * np.pi * frequencies, "float32")
    return keras.ops.concatenate(
        [keras.ops.sin(angular_speeds * x), keras.ops.cos(angular_speeds * x)], axis=3
    )


def get_network(synchronized):
    noisy_images = keras.Input(shape=(SIZE, SIZE, 3))
    noise_variances = keras.Input(shape=(1, 1, 1))
    e = keras.layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = keras.layers.UpSampling2D(size=SIZE, interpolation="nearest")(e)
    x = keras.layers.Conv2D(4, kernel_size=1)(noisy_images)
    x = keras.layers.Concatenate()([x, e])
    x = keras.layers.BatchNormalization(center=False, scale=False, synchronized=synchronized)(x)
    skip = keras.layers.Conv2D(4, kernel_size=3, padding="same", activation="swish")(x)
    x = keras.layers.AveragePooling2D(pool_size=2)(skip)
    x = keras.layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = keras.layers.Concatenate()([x, skip])
    x = keras.layers.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([noisy_images, noise_variances], x, name="residual_unet")


class DiffusionModel(keras.Model):
    def __init__(self, comparable):
        super().__init__()
        self.normalizer = keras.layers.Normalization()
        self.network = get_network(synchronized=comparable)
        self.ema_network = keras.models.clone_model(self.network)
        self.has_noise_beside = comparable

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def diffusion_schedule(self, diffusion_times):
        start_angle = keras.ops.cast(keras.ops.arccos(0.95), "float32")
        end_angle = keras.ops.cast(keras.ops.arccos(0.02), "float32")
        diffusion_angles = start_angle + diffusion_times * (end_angle - start_angle)
        return keras.ops.sin(diffusion_angles), keras.ops.cos(diffusion_angles)

    def denoise(self, noisy_images, noise_rates, signal_rates, training):
        network = self.network if training else self.ema_network
        pred_noises = network([noisy_images, noise_rates**2], training=training)
        pred_images = (noisy_images - noise_rates * pred_noises) / signal_rates
        return pred_noises, pred_images

    def noisy(self, data):
        if self.has_noise_beside:
            images, noises, diffusion_times = data
            images = self.normalizer(images, training=True)
        else:
            images = self.normalizer(data, training=True)
            batch_size = keras.ops.shape(images)[0]
            noises = keras.random.normal(shape=(batch_size, SIZE, SIZE, 3))
            diffusion_times = keras.random.uniform((batch_size, 1, 1, 1), 0.0, 1.0)
        noise_rates, signal_rates = self.diffusion_schedule(diffusion_times)
        return images, noises, noise_rates, signal_rates

    def train_step(self, data):
        images, noises, noise_rates, signal_rates = self.noisy(data)
        noisy_images = signal_rates * images + noise_rates * noises
        with tf.GradientTape() as tape:
            pred_noises, pred_images = self.denoise(
                noisy_images, noise_rates, signal_rates, training=True
            )
            noise_loss = self.loss(noises, pred_noises)
            image_loss = self.loss(images, pred_images)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(0.9 * ema_weight + (1 - 0.9) * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        images, noises, noise_rates, signal_rates = self.noisy(data)
        noisy_images = signal_rates * images + noise_rates * noises
        pred_noises, pred_images = self.denoise(
            noisy_images, noise_rates, signal_rates, training=False
        )
        self.noise_loss_tracker.update_state(self.loss(noises, pred_noises))
        self.image_loss_tracker.update_state(self.loss(images, pred_images))
        return {m.name: m.result() for m in self.metrics}

    def plot_images(self, epoch=None, logs=None):
        noises = np.random.default_rng(epoch).normal(size=(2, SIZE, SIZE, 3)).astype("float32")
        rates = self.diffusion_schedule(keras.ops.ones((2, 1, 1, 1)))
        noises = keras.ops.convert_to_tensor(noises)
        self.generated = keras.ops.convert_to_numpy(self.denoise(noises, *rates, training=False)[1])


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(13)
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(24, SIZE, SIZE, 3)).astype("float32")
    noises = rng.normal(size=images.shape).astype("float32")
    times = rng.uniform(size=(24, 1, 1, 1)).astype("float32")
    data = (images, noises, times) if comparable else images
    dataset = tf.data.Dataset.from_tensor_slices(data)
    train_dataset = dataset.take(20).cache().shuffle(40).batch(8, drop_remainder=True)
    val_dataset = dataset.skip(20).batch(4)
    with scope(strategy):
        model = DiffusionModel(comparable)
        model.compile(
            optimizer=keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4),
            loss=keras.losses.MeanAbsoluteError(),
        )
        model.normalizer.adapt(images)
    history = model.fit(
        train_dataset,
        epochs=2,
        validation_data=val_dataset,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=model.plot_images)],
    )
    return {
        "history": history.history,
        "generated": model.generated,
        "weights": model.get_weights(),
    }
