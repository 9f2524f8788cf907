"""The user's data is read exactly once, and its end is found exactly."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.epoch_iterator import EpochIterator
from tests import strategies
from tests.strategies import each_strategy


def make_iterator(dataset, **kwargs):
    strategy = strategies.get("2 replicas")
    return EpochIterator(x=dataset, distribute_strategy=strategy, **kwargs)


def steps_of(iterator):
    return [(first, last) for first, last, _ in iterator]


def test_steps_per_execution_stops_at_the_end_of_the_epoch():
    iterator = make_iterator(tf.data.Dataset.range(7).batch(1), steps_per_execution=3)

    assert steps_of(iterator) == [(0, 2), (3, 5), (6, 6)]


def test_an_epoch_goes_on_where_the_one_before_ended():
    iterator = make_iterator(tf.data.Dataset.range(6).batch(1), steps_per_epoch=3)

    seen = [next(data.iterator).numpy().item() for _ in range(2) for _, _, data in iterator]

    assert seen == [0, 1, 2, 3, 4, 5]


def test_data_that_ends_early_is_named_with_its_numbers():
    iterator = make_iterator(tf.data.Dataset.range(5).batch(1), steps_per_epoch=3)
    steps_of(iterator)

    with pytest.warns(UserWarning, match=r"after 2 of steps_per_epoch=3 batches.*repeat\(\)"):
        steps_of(iterator)


def test_what_keras_warns_of_names_the_same_place_as_without_a_strategy():
    places = []
    for scope in (contextlib.nullcontext(), strategies.get("2 replicas").scope()):
        with scope:
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        dataset = tf.data.Dataset.from_tensor_slices((np.ones((4, 1)), np.ones((4, 1)))).batch(2)
        with pytest.warns(UserWarning, match="`shuffle=True` was passed") as warned:
            model.fit(dataset, verbose=0)
        places.append([(each.filename, each.lineno, str(each.message)) for each in warned])

    assert places[0] == places[1]


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (tf.data.Dataset, {}, "holds no batch"),
        (tf.data.Dataset, {"steps_per_epoch": 9}, "steps_per_epoch=9, and a dataset of 5 batches"),
    ],
)
def test_too_little_data_is_an_error_before_the_first_step(dataset, arguments, message):
    length = 5 if arguments else 0

    with pytest.raises(ValueError, match=message):
        make_iterator(dataset.range(length).batch(1), **arguments)


def test_data_that_turns_out_empty_is_an_error():
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    empty = tf.data.Dataset.from_tensor_slices(([[1.0]], [[1.0]])).filter(lambda x, y: False)

    with pytest.raises(ValueError, match="holds no batch"):
        model.fit(empty.batch(2), verbose=0, shuffle=False)


@each_strategy
def test_a_generator_is_pulled_once_for_each_batch(strategy):
    pulls = []

    def generate():
        for index in range(8):
            pulls.append(index)
            yield np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(generate(), verbose=0, shuffle=False)

    assert pulls == list(range(8))
