"""Rows of tables: what is looked up once for all examples is one slice, as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step import sliced_gradients
from tests.cases import marked
from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import on_three_replicas, on_workers

RNG = np.random.default_rng(6)
# The last batch has two examples, for three replicas.
TOKENS = RNG.integers(0, 9, (26, 5))
Y = RNG.normal(size=(26, 1)).astype("float32")
FIT = {"batch_size": 12, "epochs": 2, "shuffle": False, "verbose": 0}
DISTANCES = np.arange(5)[:, None] - np.arange(5)[None] + 4


def test_values_are_mapped_where_a_gradient_has_some():
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 7]), [9, 1])

    mapped = sliced_gradients.map_values(slices, lambda values: values * 2)

    assert mapped.values.numpy().tolist() == [[2.0], [4.0]]
    assert mapped.indices is slices.indices
    assert sliced_gradients.map_values(None, lambda values: values * 2) is None


class Relative(keras.layers.Layer):
    """Adds a bias for the distance of two tokens, as T5 and Swin do: a row for many pairs."""

    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up

    def build(self, input_shape):
        self.table = self.add_weight(shape=(9, 4), initializer="normal", name="table")

    def call(self, x):
        biases = self.look_up(self.table)
        return x + tf.reduce_mean(tf.reshape(biases, (5, 5, 4)), axis=1)


def by_keras(table):
    return keras.ops.take(table, DISTANCES.ravel(), axis=0)


def by_arithmetic(table):
    positions = tf.range(5)
    return tf.gather(table, positions[:, None] - positions[None] + 4)


class Twice(keras.layers.Layer):
    """A table of which tokens look up rows, and all examples the first ones."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(9, 4)

    def call(self, tokens):
        return self.embedding(tokens) + self.embedding(tf.range(5))


def net(optimizer, *layers):
    def make():
        model = keras.Sequential([keras.Input((5,), dtype="int32")])
        for layer in (*layers, keras.layers.Flatten, lambda: keras.layers.Dense(1)):
            model.add(layer())
        model.compile(optimizer(), "mse")
        return model

    return make


def embedding():
    return keras.layers.Embedding(9, 4)


PROGRAMS = {
    "distances, Adam": net(lambda: "adam", embedding, lambda: Relative(by_keras)),
    "distances, Adagrad": net(
        lambda: keras.optimizers.Adagrad(0.1), embedding, lambda: Relative(by_arithmetic)
    ),
    "used twice": net(lambda: keras.optimizers.Adam(0.01), Twice),
}


def fit(model):
    return model.fit(TOKENS, Y, **FIT).history


@on_three_replicas
@pytest.mark.parametrize("name", marked(PROGRAMS, exhaustive={"distances, Adam"}))
def test_rows_that_are_looked_up_once_for_all_examples_are_squared_as_on_one_device(strategy, name):
    check_as_plain(strategy, PROGRAMS[name], fit)


def fit_all(strategy):
    return [outcome_of(strategy.scope(), make, fit) for make in PROGRAMS.values()]


@pytest.mark.exhaustive
@on_workers
def test_so_are_they_on_several_workers(workers):
    check_workers(workers, fit_all)


def test_a_step_without_a_graph_sends_slices():
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([3]), [9, 1])

    parcel = sliced_gradients.Parcel(slices, None)

    assert parcel.tensors == [slices]
    assert parcel.unpacked(iter(["the sum"])) == "the sum"
