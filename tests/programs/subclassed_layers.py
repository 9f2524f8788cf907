"""In the manner of Keras' guide to layers and models by subclassing.

Weights made in `build`, state that is not trained, `add_loss` in `call`, a metric inside of a
layer, masks made and passed on, and a VAE with an added loss.
"""

import keras
import numpy as np

from tests.programs.scope import scope


class Linear(keras.layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="random_normal", trainable=True
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True)

    def call(self, inputs):
        return keras.ops.matmul(inputs, self.w) + self.b


class ComputeSum(keras.layers.Layer):
    """Counts the calls in a variable that is not trained."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, inputs, training=None):
        if training:
            self.total.assign_add(1.0)
        return inputs


class ActivityRegularizationLayer(keras.layers.Layer):
    def __init__(self, rate=1e-2):
        super().__init__()
        self.rate = rate

    def call(self, inputs):
        self.add_loss(self.rate * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class LogisticEndpoint(keras.layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, targets, logits, sample_weight=None):
        loss = self.loss_fn(targets, logits, sample_weight)
        self.add_loss(loss)
        self.accuracy_metric.update_state(targets, logits, sample_weight)
        return keras.ops.softmax(logits)


class TemporalMasking(keras.layers.Layer):
    """Makes a mask of where the first feature is not 0."""

    def compute_mask(self, inputs, mask=None):
        return keras.ops.not_equal(inputs[..., 0], 0)

    def call(self, inputs):
        return inputs


class MaskedMean(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs, mask=None):
        mask = keras.ops.expand_dims(keras.ops.cast(mask, "float32"), -1)
        return keras.ops.sum(inputs * mask, axis=1) / (keras.ops.sum(mask, axis=1) + 1e-3)


class VariationalAutoEncoder(keras.Model):
    def __init__(self, original_dim, latent_dim=2, noise_scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.proj = keras.layers.Dense(8, activation="relu")
        self.mean = keras.layers.Dense(latent_dim)
        self.log_var = keras.layers.Dense(latent_dim)
        self.decoder = keras.layers.Dense(original_dim, activation="sigmoid")
        self.noise_scale = noise_scale
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        x = self.proj(inputs)
        z_mean, z_log_var = self.mean(x), self.log_var(x)
        epsilon = keras.random.normal(keras.ops.shape(z_mean), seed=self.seed_generator)
        z = z_mean + keras.ops.exp(0.5 * z_log_var) * epsilon * self.noise_scale
        kl_loss = -0.5 * keras.ops.mean(
            z_log_var - keras.ops.square(z_mean) - keras.ops.exp(z_log_var) + 1
        )
        self.add_loss(kl_loss)
        return self.decoder(z)


def run(strategy, *, comparable=False):
    keras.utils.set_random_seed(15)
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(37, 6)).astype("float32")
    targets = (x[:, :1] > 0.5).astype("float32")
    sequences = rng.uniform(size=(37, 5, 3)).astype("float32")
    sequences[np.arange(5) >= rng.integers(1, 6, size=(37, 1))] = 0
    with scope(strategy):
        mlp = keras.Sequential(
            [
                Linear(8),
                keras.layers.ReLU(),
                ActivityRegularizationLayer(),
                ComputeSum(),
                Linear(1),
            ]
        )
        mlp.compile(optimizer="adam", loss="mse")

        inputs = keras.Input(shape=(6,), name="inputs")
        logits = Linear(1)(inputs)
        target_input = keras.Input(shape=(1,), name="targets")
        predictions = LogisticEndpoint(name="predictions")(target_input, logits)
        endpoint = keras.Model([inputs, target_input], predictions)
        endpoint.compile(optimizer="adam")

        masked = keras.Sequential(
            [
                TemporalMasking(),
                keras.layers.LSTM(4, return_sequences=True),
                MaskedMean(),
                Linear(1),
            ]
        )
        masked.compile(optimizer="adam", loss="mse")

        vae = VariationalAutoEncoder(6, noise_scale=0.0 if comparable else 1.0)
        vae.compile(keras.optimizers.Adam(1e-3), loss=keras.losses.MeanSquaredError())
    histories = [
        mlp.fit(x, targets, batch_size=8, epochs=2, validation_split=0.2).history,
        endpoint.fit({"inputs": x, "targets": targets}, batch_size=8, epochs=2).history,
        masked.fit(sequences, targets, batch_size=8, epochs=2).history,
        vae.fit(x, x, batch_size=9, epochs=2).history,
    ]
    return {
        "histories": histories,
        "losses": [len(each.losses) for each in (mlp, endpoint, vae)],
        "weights": [each.get_weights() for each in (mlp, endpoint, masked, vae)],
    }
