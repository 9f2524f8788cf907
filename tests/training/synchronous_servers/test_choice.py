"""Updates that one worker computes: those that several batches cannot share, and only those."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.training.synchronous_servers import choice
from kerasdist.training.synchronous_servers.inseparable import InseparableError
from tests import strategies

NUM_EXAMPLES, EXAMPLES_OF_UPDATE = 26, 8
X = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
LABELS = (Y > 0).astype("float32")
IDS = np.random.default_rng(1).integers(0, 5, size=(NUM_EXAMPLES, 4))
IDS[:, 0] = 1


def dense(*, before=(), **arguments):
    layers = [*before, keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(**{"optimizer": "adam", "loss": "mse", **arguments})
    return model


def differently_masked():
    ids = keras.Input((4,), dtype="int64")
    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(ids)
    of_words = keras.layers.Dense(1, name="words")(embedded)
    of_all = keras.layers.Dense(1, name="all")(keras.layers.GlobalAveragePooling1D()(embedded))
    model = keras.Model(ids, {"words": of_words, "all": of_all})
    model.compile("adam", loss={"words": "mse", "all": "mse"})
    return model


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(y_pred - y_true))))

    def result(self):
        return self.largest


class Two(keras.Model):
    """Trains two networks, the second with what the first has become."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)
        self.other_optimizer = keras.optimizers.SGD(0.1)

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        optimizers = self.optimizer, self.other_optimizer
        for layer, optimizer in zip((self.first, self.second), optimizers, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Counting(keras.Model):
    """Keeps a running mean of what it has seen, and normalizes with it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.mean = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, axis=0))
        return self.dense(x - self.mean)


class Contrast(keras.layers.Layer):
    """Adds a loss that compares the examples of a batch with each other."""

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x @ tf.transpose(x))))
        return x


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def contrastive(y, predictions):
    return tf.reduce_mean(
        tf.square((predictions - tf.transpose(predictions)) - (y - tf.transpose(y)))
    )


def own_mean(y, predictions):
    return tf.reduce_mean(tf.abs(y - predictions), axis=-1)


def weighted_by_itself(y, predictions):
    return kerasdist.global_mean(tf.square(y - predictions), weights=tf.cast(y > 0, tf.float32))


def largest_error(y, predictions):
    return tf.reduce_max(tf.abs(y - predictions))


def compiled(model, **arguments):
    model.compile(**{"optimizer": "adam", "loss": "mse", **arguments})
    return model


def synchronized():
    return [keras.layers.BatchNormalization(synchronized=True)]


# What makes a model, what it is trained with, and whether one worker computes each update.
PROGRAMS = {
    "plain": (dense, X, Y, False),
    "AUC": (lambda: dense(metrics=["AUC"]), X, LABELS, False),
    "masked differently": (
        differently_masked,
        IDS,
        {"words": np.repeat(Y, 4, axis=1)[..., None], "all": Y},
        True,
    ),
    "synchronized statistics": (lambda: dense(before=synchronized()), X, Y, True),
    "a metric that assigns": (lambda: dense(metrics=[Largest()]), X, Y, True),
    "a loss that compares examples": (lambda: dense(loss=contrastive), X, Y, True),
    "an added loss that compares them": (
        lambda: dense(before=[keras.layers.Dense(4), Contrast()]),
        X,
        Y,
        True,
    ),
    "a loss of Keras' that compares them": (lambda: dense(loss="dice"), X, LABELS, True),
    "a mean with a divisor of its own": (lambda: dense(loss=weighted_by_itself), X, LABELS, True),
    "a mean of its own": (
        lambda: dense(before=[Doubled()], loss=own_mean, metrics=["AUC", own_mean]),
        X,
        LABELS,
        False,
    ),
    "a metric of each batch": (lambda: dense(metrics=[largest_error]), X, Y, True),
    "two optimizers": (lambda: compiled(Two()), X, Y, True),
    "a state of its own": (lambda: compiled(Counting()), X, Y, True),
}


def train(strategy, name, batch_size):
    """Returns who has computed, the weights, the updates and the logs of two epochs."""
    make, x, y, _ = PROGRAMS[name]
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    is_whole = getattr(model.train_function, "joins_batches", False)
    return is_whole, model.get_weights(), int(model.optimizer.iterations), history.history


def train_all(strategy, batch_size):
    return {name: train(strategy, name, batch_size) for name in PROGRAMS}


def train_with_batches_of_workers(strategy):
    return train_all(strategy, EXAMPLES_OF_UPDATE // 2)


def test_a_trial_has_one_batch_where_several_cannot_be_joined():
    numbers = tf.data.Dataset.range(1, 9)

    joined = choice.some_examples(numbers.batch(2), 3)
    padded = choice.some_examples(numbers.map(tf.range).padded_batch(2), 3)

    assert joined.shape == (6,)
    assert padded.shape == (2, 2)


def test_data_that_may_not_be_read_twice_is_not_tried():
    dataset = tf.data.Dataset.from_generator(lambda: [1], output_signature=tf.TensorSpec([]))

    with pytest.raises(InseparableError, match="the data may not be read twice"):
        choice.some_examples(dataset, 2)


@pytest.mark.processes
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
def test_updates_are_those_of_one_device_and_shared_where_that_gives_them(workers):
    (found,) = strategies.run_on_workers(train_with_batches_of_workers, workers)

    expected = train_all(strategies.get("one device"), EXAMPLES_OF_UPDATE)
    for name, (_, weights, num_updates, logs) in expected.items():
        assert found[name][0] is PROGRAMS[name][-1], name
        assert found[name][2] == num_updates, name
        for weight, other in zip(found[name][1], weights, strict=True):
            np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6, err_msg=name)
        for key, values in logs.items():
            np.testing.assert_allclose(found[name][3][key], values, rtol=1e-5, err_msg=name)
