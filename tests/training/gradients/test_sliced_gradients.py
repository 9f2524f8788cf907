"""Rows of tables: what is looked up once for all examples is one slice, as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.gradients import sliced_gradients
from tests import strategies
from tests.cases import crossed
from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import on_three_replicas, on_workers

RNG = np.random.default_rng(6)
# The last batch has two examples, for three replicas.
TOKENS = RNG.integers(0, 9, (26, 5))
Y = RNG.normal(size=(26, 1)).astype("float32")
FIT = {"batch_size": 12, "epochs": 2, "shuffle": False, "verbose": 0}
DISTANCES = np.arange(5)[:, None] - np.arange(5)[None] + 4


class Relative(keras.layers.Layer):
    """Adds a bias for the distance of two tokens, as T5 and Swin do: a row for many pairs."""

    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up

    def build(self, input_shape):
        self.table = self.add_weight(shape=(9, 4), initializer="normal", name="table")
        self.distances = self.add_weight(
            shape=(25,),
            initializer=lambda *_, **__: DISTANCES.ravel(),
            dtype="int32",
            trainable=False,
        )

    def call(self, x):
        biases = self.look_up(self)
        return x + tf.reduce_mean(tf.reshape(biases, (5, 5, 4)), axis=1)


def by_keras(layer):
    return keras.ops.take(layer.table, DISTANCES.ravel(), axis=0)


def by_variable(layer):
    return keras.ops.take(layer.table, layer.distances, axis=0)


def by_arithmetic(layer):
    positions = tf.range(5)
    return tf.gather(layer.table, positions[:, None] - positions[None] + 4)


class Twice(keras.layers.Layer):
    """A table of which tokens look up rows, and all examples the first ones."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(9, 4)

    def call(self, tokens):
        return self.embedding(tokens) + self.embedding(tf.range(5))


class Tiled(keras.layers.Layer):
    """Looks up positions for each example: Keras reads the size of the batch."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(9, 4)

    def call(self, x):
        positions = keras.ops.tile(keras.ops.arange(5)[None], (keras.ops.shape(x)[0], 1))
        return x + self.embedding(positions)


def net(optimizer, *layers, run_eagerly=False):
    def make():
        model = keras.Sequential([keras.Input((5,), dtype="int32")])
        for layer in (*layers, keras.layers.Flatten, lambda: keras.layers.Dense(1)):
            model.add(layer())
        model.compile(optimizer(), "mse", run_eagerly=run_eagerly)
        return model

    return make


def embedding():
    return keras.layers.Embedding(9, 4)


def relative(look_up):
    return lambda: Relative(look_up)


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
}
LAYERS = {
    "distances": (embedding, relative(by_keras)),
    "distances by arithmetic": (embedding, relative(by_arithmetic)),
    "distances in a variable": (embedding, relative(by_variable)),
    "used twice": (Twice,),
    "for each example": (embedding, Tiled),
}
KEPT = [
    ("distances by arithmetic", "Adagrad", False),
    ("distances in a variable", "Adam", False),
    ("used twice", "Adam", False),
    ("distances in a variable", "RMSprop", True),
    ("used twice", "Adam", True),
    ("for each example", "Adagrad", True),
]
CASES = crossed(LAYERS, OPTIMIZERS, [False, True], kept=KEPT)


def program(layers, optimizer, run_eagerly):
    return net(OPTIMIZERS[optimizer], *LAYERS[layers], run_eagerly=run_eagerly)


def fit(model):
    return model.fit(TOKENS, Y, **FIT).history


@on_three_replicas
@pytest.mark.parametrize(("layers", "optimizer", "run_eagerly"), CASES)
def test_rows_that_are_looked_up_once_for_all_examples_are_squared_as_on_one_device(
    strategy, layers, optimizer, run_eagerly
):
    check_as_plain(strategy, program(layers, optimizer, run_eagerly), fit)


@pytest.mark.exhaustive
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_so_are_they_on_two_replicas(run_eagerly):
    check_as_plain(strategies.get("2 replicas"), program("used twice", "Adam", run_eagerly), fit)


def fit_all(strategy):
    return [outcome_of(strategy.scope(), program(*case), fit) for case in KEPT]


@pytest.mark.exhaustive
@on_workers
def test_so_are_they_on_several_workers(workers):
    check_workers(workers, fit_all)


def test_a_step_without_a_graph_sends_slices():
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([3]), [9, 1])

    parcel = sliced_gradients.Parcel(slices, None)

    assert parcel.tensors == [slices]
    assert parcel.unpacked(iter(["the sum"])) == "the sum"
