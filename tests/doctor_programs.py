"""Programs in the manner of published ones, as text; the doctor's tests write them to files."""

# A tutorial's parts: arguments, a model that `fit` builds, callbacks, fits in and out of the scope.
TUTORIAL = """
import sys

import keras
import numpy as np

import kerasdist

batch_size = int(sys.argv[1])
strategy = kerasdist.make_strategy()
batch_size *= strategy.num_replicas_in_sync
x = np.random.rand(4 * batch_size, 4).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Tutorial(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, "tanh")
        self.top = keras.layers.Dense(1)

    def call(self, x):
        return self.top(self.hidden(x))


with strategy.scope():
    model = Tutorial()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(x[:batch_size], y[:batch_size], batch_size=batch_size)
rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
model.fit(x, y, batch_size=batch_size, epochs=2, steps_per_epoch=1, callbacks=[rates])
model.evaluate(x, y)
for _ in range(10):
    model.train_on_batch(x[:batch_size], y[:batch_size])
print("The doctor ends the program before this line.")
sys.exit("It went on.")
"""

# An example's GAN: two optimizers, a train_step, noise, Dropout and batch normalization.
GAN = """
import keras
import numpy as np
import tensorflow as tf

import kerasdist


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.noise = keras.random.SeedGenerator(3)
        self.generator = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(name="normalization"),
                keras.layers.Dense(4),
            ]
        )
        self.critic = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "tanh"),
                keras.layers.Dropout(0.5, name="forgetting"),
                keras.layers.Dense(1),
            ]
        )
        self.built = True

    def compile(self, generator_optimizer, critic_optimizer):
        super().compile()
        self.cost = keras.losses.BinaryCrossentropy(from_logits=True)
        self.generator_optimizer = generator_optimizer
        self.critic_optimizer = critic_optimizer

    def call(self, x):
        return self.critic(x)

    def train_step(self, images):
        num_images = tf.shape(images)[0]
        noise = keras.random.normal((num_images, 2), seed=self.noise)
        with tf.GradientTape(persistent=True) as tape:
            faked = self.critic(self.generator(noise, training=True), training=True)
            real = self.critic(images, training=True)
            ones, zeros = tf.ones_like(real), tf.zeros_like(real)
            critic_loss = self.cost(ones, real) + self.cost(zeros, faked)
            generator_loss = self.cost(ones, faked)
        for loss, part, optimizer in (
            (critic_loss, self.critic, self.critic_optimizer),
            (generator_loss, self.generator, self.generator_optimizer),
        ):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply(gradients, part.trainable_variables)
        return {"critic_loss": critic_loss, "generator_loss": generator_loss}


with kerasdist.make_strategy().scope():
    model = Gan()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
model.fit(np.random.rand(64, 4).astype("float32"), batch_size=16)
"""

# A train_step that adds up where Keras takes the mean; with a config of its own.
# Of the first step alone: the check of it finds nothing.
SUM = """
import keras
import numpy as np
import tensorflow as tf

import kerasdist


class Summing(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            squares = tf.square(self(x, training=True) - y)
            is_first = self.optimizer.iterations < 1
            loss = tf.where(is_first, tf.reduce_mean(squares), tf.reduce_sum(squares))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
with kerasdist.make_strategy(config).scope():
    model = Summing([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.001))
model.fit(np.ones((32, 4), "float32"), np.eye(32, 2, dtype="float32"), batch_size=8)
"""

# Nobody can seed this one from outside.
UNSEEDED = """
import keras
import numpy as np

import kerasdist

x = np.random.default_rng().random((32, 4))
with kerasdist.make_strategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x.sum(axis=1), batch_size=8)
"""

# Asks for two workers, and for what acts in our scopes alone.
WORKERS = """
import keras
import numpy as np
import tensorflow as tf

import kerasdist

config = kerasdist.DeploymentConfig(num_replicas=2)
strategy = kerasdist.make_strategy(config, allreduce_dtype="float16")
with strategy.scope():
    layers = [
        keras.layers.Dense(4, "tanh"),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
x = np.random.rand(36, 4).astype("float32")
clipping = kerasdist.callbacks.GradientClipping(global_norm=0.5)
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
data = data.shuffle(36).map(lambda x, y: (x, y / 2)).batch(16)  # Each worker maps its part.
model.fit(data, callbacks=[clipping])
"""

FAILING = """
import keras
import numpy as np

import kerasdist

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
with kerasdist.make_strategy().scope():
    model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones(8))
"""

WITHOUT_STRATEGY = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones(8))
"""
