"""A replica without examples computes what one with examples would, and counts for nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import on_three_replicas

RNG = np.random.default_rng(4)
IMAGES = RNG.normal(size=(17, 8, 8, 3)).astype("float32")
SEQUENCES = RNG.normal(size=(17, 6, 3)).astype("float32")
LABELS = RNG.integers(0, 3, 17)
VALUES = np.where(RNG.random((17, 6)) < 0.3, RNG.normal(size=(17, 6)), 0).astype("float32")

HIDDEN = {
    "convolution": (IMAGES, lambda: [layers.Conv2D(4, 3), layers.GlobalAveragePooling2D()]),
    "synchronized statistics": (
        IMAGES,
        lambda: [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(synchronized=True),
            layers.GlobalMaxPooling2D(),
        ],
    ),
    "LSTM": (SEQUENCES, lambda: [layers.LSTM(4)]),
    "two directions": (SEQUENCES, lambda: [layers.Bidirectional(layers.LSTM(4))]),
}


def make_classifier(hidden, shape, **compile_arguments):
    model = keras.Sequential([keras.Input(shape), *hidden(), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], **compile_arguments)
    return model


def run_everything(x, y, batch_size=8):
    """Returns what every method gives, where the last batch has one example."""

    def run(model):
        return [
            model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0).history,
            model.evaluate(x, y, batch_size=batch_size, verbose=0),
            model.predict(x, batch_size=batch_size, verbose=0),
            model.predict(x[:1], verbose=0),
            model.train_on_batch(x[:1], y[:1]),
            model.test_on_batch(x[:1], y[:1]),
        ]

    return run


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@on_three_replicas
@pytest.mark.parametrize(
    ("hidden", "eagerly"),
    [
        ("convolution", True),
        ("LSTM", False),
        *exhaustive(
            ("convolution", False),
            ("synchronized statistics", False),
            ("synchronized statistics", True),
            ("LSTM", True),
            ("two directions", False),
            ("two directions", True),
        ),
    ],
)
def test_layers_that_fail_on_no_example_compute(strategy, hidden, eagerly):
    x, make_hidden = HIDDEN[hidden]

    check_as_plain(
        strategy,
        lambda: make_classifier(make_hidden, x.shape[1:], run_eagerly=eagerly),
        run_everything(x, LABELS),
    )


def regularized():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, "tanh", kernel_regularizer="l2", activity_regularizer="l2"),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


@on_three_replicas
def test_a_loss_of_one_example_and_a_regularizer_is_a_number(strategy):
    x, y = SEQUENCES[:5, 0], SEQUENCES[:5, 1, :1]

    check_as_plain(strategy, regularized, run_everything(x, y, batch_size=1))


class CustomStep(keras.Model):
    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.compute_metrics(x, y, self(x))


def unbuilt():
    hidden = [layers.Dense(4, "tanh"), layers.BatchNormalization(synchronized=True)]
    return keras.Sequential([*hidden, layers.Dense(1)])


def with_custom_step():
    inputs = keras.Input((3,))
    return CustomStep(inputs, layers.Dense(1)(inputs))


@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@on_three_replicas
@pytest.mark.parametrize("make", [with_custom_step, unbuilt])
def test_states_that_the_first_eager_step_makes_count_its_examples_once(strategy, make):
    x, y = SEQUENCES[:5, 0], SEQUENCES[:5, 1, :1]

    def make_compiled():
        model = make()
        model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
        return model

    check_as_plain(strategy, make_compiled, run_everything(x, y, batch_size=1))


class KeepsMean(keras.layers.Layer):
    """Keeps the mean of what it has seen last, which each replica does for itself."""

    def build(self, input_shape):
        self.mean = self.add_weight(shape=input_shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.mean.assign(keras.ops.mean(inputs, axis=0))
        return inputs


@on_three_replicas
def test_it_leaves_the_state_of_layers_as_it_is(strategy):
    with strategy.scope():
        layer = KeepsMean()
        model = keras.Sequential([keras.Input((3,)), layer, layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = SEQUENCES[:, 0].copy(), SEQUENCES[:, 1, :1]
    x[:8] = 0  # The check of the first step finds the same mean on all replicas.

    with pytest.warns(UserWarning, match="assigns to the state .*keeps_mean"):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)  # The last batch has one example.

    share = -(-8 // strategy.num_replicas_in_sync)
    values = strategy.experimental_local_results(layer.mean.value)
    np.testing.assert_allclose(values[0], x[16])
    np.testing.assert_allclose(values[1], x[8 + share : 8 + 2 * share].mean(axis=0), rtol=1e-5)


def sparse():
    inputs = keras.Input((6,), sparse=True)
    return keras.Model(inputs, layers.Dense(3)(inputs)), tf.sparse.from_dense(VALUES)


def ragged():
    inputs = keras.Input((None,), dtype="int32", ragged=True)
    means = layers.Lambda(lambda words: tf.reduce_mean(tf.cast(words, tf.float32), axis=1))(inputs)
    model = keras.Model(inputs, layers.Dense(3)(keras.ops.reshape(means, (-1, 1))))
    return model, tf.RaggedTensor.from_row_lengths(np.arange(17 * 18 // 2) % 7, np.arange(1, 18))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@on_three_replicas
@pytest.mark.parametrize(
    ("make_with_data", "eagerly"),
    [(ragged, False), *exhaustive((sparse, False), (sparse, True), (ragged, True))],
)
def test_sparse_and_ragged_data_takes_part(strategy, eagerly, make_with_data):
    _, x = make_with_data()
    dataset = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(8)
    one, _ = next(iter(dataset.unbatch().batch(1)))

    def make():
        model, _ = make_with_data()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, run_eagerly=eagerly)
        return model

    def run(model):
        return [
            model.fit(dataset, epochs=2, shuffle=False, verbose=0).history,
            model.evaluate(dataset, verbose=0),
            model.predict(dataset, verbose=0),
            model.train_on_batch(one, LABELS[:1]),
            model.test_on_batch(one, LABELS[:1]),
            model.predict_on_batch(one),
        ]

    check_as_plain(strategy, make, run)


@on_three_replicas
def test_distributed_data_takes_part(strategy):
    def make():
        return make_classifier(HIDDEN["convolution"][1], (8, 8, 3))

    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(8)

    def run(model):
        data = dataset
        if model.distribute_strategy is strategy:
            data = strategy.experimental_distribute_dataset(dataset)
        return [
            model.fit(data, epochs=2, shuffle=False, verbose=0).history,
            model.evaluate(data, verbose=0),
        ]

    check_as_plain(strategy, make, run)
