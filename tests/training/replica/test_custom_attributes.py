"""Attributes of the user's own parts come back, and those that say what is made stay."""

import collections
from typing import Any

import keras
import numpy as np

from kerasdist.training.replica import custom_attributes


class Own(keras.Model):
    """A model of the user's own, called by nobody."""

    def call(self, inputs):
        return inputs


def test_values_come_back_also_what_is_changed_in_place():
    model = Own()
    model.count, model.words = 1, {"a": [1]}
    model.recent = collections.deque([1, 2], maxlen=2)
    model.first = collections.OrderedDict(a=1)
    model.table = np.zeros(2)
    words, inner = model.words, model.words["a"]

    with custom_attributes.kept(model):
        model.count, model.late = 2, "late"
        model.words["a"].append(2)
        model.words["b"] = []
        model.recent.append(3)
        model.first["b"] = 2
        model.table += 1
        model.words = {}

    assert model.count == 1
    assert not hasattr(model, "late")
    assert model.words is words
    assert words == {"a": [1]}
    assert words["a"] is inner
    assert list(model.recent) == [1, 2]
    assert list(model.first.items()) == [("a", 1)]
    assert model.table.tolist() == [0, 0]


def test_what_layers_of_keras_are_set_to_comes_back():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    dense: Any
    dropout: Any
    dense, dropout = model.layers

    with custom_attributes.kept(model):
        model.trainable = False
        dropout.rate = 0.1

    assert (model.trainable, dense.trainable, dense.kernel.trainable) == (True, True, True)
    assert dropout.rate == 0.5


def test_what_is_very_large_is_not_walked_through():
    model = Own()
    model.table, model.words = [[1]] + [0] * 100_000, {"first": 1}
    inner: Any = model.table[0]  # What Keras makes of them.
    words: Any = model.words

    with custom_attributes.kept(model):
        inner.append(2)
        model.table.append(3)
        words.update(dict.fromkeys(range(100_001)))

    assert inner == [1, 2]
    assert len(model.table) == 100_002
    assert words == {"first": 1}  # It was small, which is what counts.


def test_they_come_back_after_an_error_too():
    model = Own()
    model.count = 0

    try:
        with custom_attributes.kept(model):
            model.count += 1
            raise KeyError
    except KeyError:
        assert model.count == 0


class Counts(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.count = 0


class CountsCalls(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.count = 0


class CountsSteps(keras.optimizers.SGD):
    def __init__(self):
        super().__init__()
        self.count = 0


def test_those_of_everything_that_is_given_to_compile_come_back():
    """Also before the first step, when Keras does not say yet which metrics there are."""
    parts = CountsSteps(), CountsCalls(), Counts(), Counts()
    optimizer, loss, metric, weighted = parts
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics={"dense": [metric]}, weighted_metrics=[weighted])

    with custom_attributes.kept(model):
        for part in parts:
            part.count += 1

    assert [part.count for part in parts] == [0, 0, 0, 0]


def test_what_says_that_a_variable_is_made_stays_with_it():
    model = Own()
    model.is_ready = False

    with custom_attributes.kept(model):
        model.average = keras.Variable(0.0)
        model.is_ready = True

    assert model.is_ready
    assert model.variables == [model.average]


def test_what_a_layer_learns_when_it_is_built_stays():
    class Scaled(keras.layers.Layer):
        def build(self, input_shape):
            self.size = input_shape[-1]

    model = Own()
    model.scaled = Scaled()

    with custom_attributes.kept(model):
        model.scaled.build((None, 3))

    assert model.scaled.size == 3
