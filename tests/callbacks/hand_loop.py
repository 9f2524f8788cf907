"""The truth for the callbacks: training written out by hand, in NumPy, on one device.

Nothing of kerasdist or Keras is in it; TensorFlow only differentiates the loss.

    truth = hand_loop.train(change=lambda gradients, step: [3 * each for each in gradients])
    hand_loop.assert_same(model, truth.weights)

`make_model` and `fit` do the same with Keras, a strategy and callbacks.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from kerasdist.parity import models, own_parts
from kerasdist.parity.data import examples

_RNG = np.random.default_rng(5)


def _normal(*shape):
    return _RNG.normal(scale=0.5, size=shape).astype("float32")


# Of `make_model`: hidden kernel and bias, head kernel and bias.
START = [_normal(6, 8), _normal(8), _normal(8, 1), _normal(1)]
# Of `make_words_model`: embeddings, head kernel and bias.
WORDS_START = [_normal(20, 4), _normal(4, 3), _normal(3)]


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training went through: the weights from the first to the last, and the losses."""

    trajectory: list
    losses: list

    @property
    def weights(self):
        return self.trajectory[-1]


def global_batches(num_examples=101, batch_size=16, epochs=2, data=None):
    """Returns the global batches of some epochs; the last one of each is smaller."""
    x, y = data or examples()
    starts = range(0, num_examples, batch_size)
    ends = [min(start + batch_size, num_examples) for start in starts]
    return [(x[i:j], y[i:j]) for i, j in zip(starts, ends, strict=True)] * epochs


def in_groups(batches, size):
    """Returns batches that are `size` times larger, without what is left over."""
    return [
        tuple(np.concatenate(parts) for parts in zip(*batches[start : start + size], strict=True))
        for start in range(0, len(batches) - size + 1, size)
    ]


def mean_square(weights, x, y):
    """Returns the loss of `make_model`."""
    hidden_kernel, hidden_bias, head_kernel, head_bias = weights
    outputs = tf.tanh(x @ hidden_kernel + hidden_bias) @ head_kernel + head_bias
    return tf.reduce_mean(tf.square(outputs - y))


def cross_entropy(weights, x, y):
    """Returns the loss of `make_words_model`."""
    embeddings, kernel, bias = weights
    logits = tf.reduce_mean(tf.gather(embeddings, x), axis=1) @ kernel + bias
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def train(change=None, *, batches=None, update=None, loss=mean_square, start=None) -> Training:
    """Trains by hand.

    Args:
        change: (gradients, step) -> gradients; None leaves them.
        batches: Pairs (x, y), one for each step.
        update: From `sgd` or `adam`.
        loss: (weights, x, y) -> scalar.
        start: The first weights.
    """
    update = update or sgd()
    trajectory, losses = [start or START], []
    for step, (x, y) in enumerate(batches or global_batches()):
        variables = [tf.Variable(each) for each in trajectory[-1]]
        with tf.GradientTape() as tape:
            value = loss(variables, x, y)
        gradients = tape.gradient(value, variables)
        gradients = [tf.convert_to_tensor(each).numpy() for each in gradients]
        if change:
            gradients = change(gradients, step)
        trajectory.append(update(trajectory[-1], gradients, step))
        losses.append(float(value))
    return Training(trajectory, losses)


def sgd(learning_rate=0.1, momentum=0.9):
    """Returns the update of SGD; `learning_rate` is a number or a function of the step."""
    velocities: list = []

    def update(weights, gradients, step):
        rate = learning_rate(step) if callable(learning_rate) else learning_rate
        old = velocities or [0.0] * len(weights)
        velocities[:] = [momentum * v - rate * g for v, g in zip(old, gradients, strict=True)]
        return [w + v for w, v in zip(weights, velocities, strict=True)]

    return update


def adam(learning_rate=0.01):
    """Returns the update of Adam with Keras' defaults."""
    moments: list = []

    def update(weights, gradients, step):
        old = moments or [(0.0, 0.0)] * len(weights)
        moments[:] = [
            (0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g)
            for (m, v), g in zip(old, gradients, strict=True)
        ]
        rate = learning_rate * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        return [
            (w - rate * m / (np.sqrt(v) + 1e-7)).astype("float32")
            for w, (m, v) in zip(weights, moments, strict=True)
        ]

    return update


def clip_norm(gradients, limit):
    """Returns each gradient with an L2 norm of at most `limit`."""
    return [g * limit / max(np.sqrt(np.sum(np.square(g))), limit) for g in gradients]


def clip_global_norm(gradients, limit):
    """Returns gradients whose common L2 norm is at most `limit`."""
    total = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
    return [g * limit / max(total, limit) for g in gradients]


def clip_value(gradients, limit):
    """Returns gradients without an element beyond `limit`."""
    return [np.clip(g, -limit, limit) for g in gradients]


def multiply(gradients, factors):
    """Returns each gradient times its factor."""
    return [g * factor for g, factor in zip(gradients, factors, strict=True)]


def average(trajectory, decay, *, num_updates=True, every_steps=1):
    """Returns the moving average of weights that went through `trajectory`."""
    averages = trajectory[0]
    for step, weights in enumerate(trajectory[1:], start=1):
        if step % every_steps == 0:
            d = min(decay, (1 + step) / (10 + step)) if num_updates else decay
            averages = [d * a + (1 - d) * w for a, w in zip(averages, weights, strict=True)]
    return averages


def make_model(strategy, optimizer=None, *, own_train_step=False, dtype=None, **compile_arguments):
    """Returns the compiled model "net" with the layers "hidden" and "head", at `START`.

    Args:
        strategy: The strategy in whose scope it is made.
        optimizer: A function that returns an optimizer; SGD as in `sgd()` without it.
        own_train_step: Whether train_step is one that a user wrote.
        dtype: Keras' dtype policy of the layers.
        **compile_arguments: Those of `compile`.
    """
    with strategy.scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="tanh", dtype=dtype, name="hidden")(inputs)
        outputs = keras.layers.Dense(1, dtype=dtype, name="head")(hidden)
        make = own_parts.HasTrainStep if own_train_step else keras.Model
        model = make(inputs, outputs, name="net")
        model.compile(
            optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9),
            loss=None if own_train_step else "mse",
            **compile_arguments,
        )
    model.set_weights(START)
    return model


def make_words_model(strategy):
    """Returns `models.embedding()` at `WORDS_START`; its Adam is `adam()`."""
    with strategy.scope():
        model = models.embedding()
    model.set_weights(WORDS_START)
    return model


def make(strategy, model):
    """Returns a model of `parity.models`, from the same initial weights every time.

    Args:
        strategy: The strategy in whose scope it is made.
        model: One of the functions of `parity.models`.
    """
    keras.utils.set_random_seed(1)
    with strategy.scope():
        return model()


def words():
    """Returns (x, y): int [101, 5] and the labels int [101]."""
    rng = np.random.default_rng(2)
    return rng.integers(0, 20, size=(101, 5)), rng.integers(0, 3, size=101)


def fit(model, callbacks=(), *, data=None, **arguments):
    """Trains on `global_batches()`; returns the history."""
    x, y = data or examples()
    arguments = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0} | arguments
    return model.fit(x, y, callbacks=list(callbacks), **arguments).history


def assert_same(model_or_weights, weights, tolerance=1e-5):
    """Checks that weights are those of the hand loop."""
    if isinstance(model_or_weights, keras.Model):
        model_or_weights = model_or_weights.get_weights()
    for ours, theirs in zip(model_or_weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=0)


def largest_difference(weights, others) -> float:
    """Returns the largest absolute difference, to show that a truth is not a trivial one."""
    return max(float(np.abs(a - b).max()) for a, b in zip(weights, others, strict=True))


def on_every_replica(strategy, variables) -> list:
    """Returns the values of `variables`, by replica."""
    results = [strategy.experimental_local_results(each.value) for each in variables]
    return [[value.numpy() for value in replica] for replica in zip(*results, strict=True)]
