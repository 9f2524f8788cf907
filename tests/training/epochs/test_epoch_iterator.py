"""The user's data is read exactly once, and its end is found exactly.

That epochs begin and end as those of plain Keras is in test_data_order.py.
"""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.epochs.epoch_iterator import EpochIterator
from tests import strategies
from tests.cases import exhaustive
from tests.strategies import each_kind_of_strategy, each_strategy


def make_iterator(dataset, **kwargs):
    strategy = strategies.get("2 replicas")
    iterator = EpochIterator(x=dataset, distribute_strategy=strategy, **kwargs)
    iterator.reset()
    return iterator


def make_model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def examples(count):
    return np.ones((count, 2), "float32"), np.ones((count, 1), "float32")


def test_the_last_call_takes_what_there_is():
    iterator = make_iterator(tf.data.Dataset.range(7).batch(1), steps_per_execution=3)

    assert [data.num_steps for _, _, data in iterator] == [3, 3, 1]


def test_an_epoch_goes_on_where_the_one_before_ended():
    iterator = make_iterator(tf.data.Dataset.range(6).batch(1), steps_per_epoch=3)

    seen = [next(data).numpy().item() for _ in range(2) for _, _, data in iterator]

    assert seen == [0, 1, 2, 3, 4, 5]


@each_kind_of_strategy
def test_data_that_ends_early_is_said_in_the_words_of_keras(strategy):
    model = make_model(strategy)

    with pytest.warns(UserWarning, match="Your input ran out of data; interrupting training"):
        model.fit(*examples(8), batch_size=4, steps_per_epoch=3, verbose=0)


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


@each_kind_of_strategy
def test_data_of_unknown_length_ends_without_a_word(strategy):
    model = make_model(strategy)
    data = tf.data.Dataset.from_tensor_slices(examples(8)).filter(lambda x, y: True).batch(4)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(data, epochs=2, verbose=0, shuffle=False)


@each_kind_of_strategy
@pytest.mark.parametrize("is_known", [True, False])
def test_data_without_a_batch_is_named(strategy, is_known):
    model = make_model(strategy)
    data = tf.data.Dataset.from_tensor_slices(examples(8))
    empty = data.take(0) if is_known else data.filter(lambda x, y: False)

    with pytest.warns(UserWarning, match="The data holds no batch: nothing was computed"):
        history = model.fit(empty.batch(2), verbose=0, shuffle=False).history

    assert history == {}


@each_kind_of_strategy
def test_a_generator_is_pulled_once_for_each_batch(strategy):
    pulls = []

    def generate():
        for index in range(8):
            pulls.append(index)
            yield examples(4)

    make_model(strategy).fit(generate(), verbose=0, shuffle=False)

    assert pulls == list(range(8))


def none_beside(x, y, *, as_dict):
    return ({"x": x, "o": None}, y) if as_dict else (x, y, None)


class AddsOther(keras.Model):
    """Adds an input that may be missing."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        x, other = (inputs["x"], inputs["o"]) if isinstance(inputs, dict) else (inputs, None)
        return self.dense(x if other is None else x + other)


@each_kind_of_strategy
@pytest.mark.parametrize("as_dict", [True, False], ids=["in the inputs", "as sample_weight"])
@pytest.mark.parametrize("run_eagerly", [*exhaustive(True), False], ids=["eagerly", "compiled"])
def test_none_in_a_generator_stays_none(strategy, as_dict, run_eagerly):
    tf.get_logger().setLevel("ERROR")

    def data():
        return (none_beside(*examples(5), as_dict=as_dict) for _ in range(3))

    with strategy.scope():
        model = AddsOther()
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    history = model.fit(data(), verbose=0, shuffle=False).history
    model.train_on_batch(*none_beside(*examples(5), as_dict=as_dict))

    assert history["loss"][0] >= 0
    assert model.evaluate(data(), verbose=0) >= 0
    assert model.predict(data(), verbose=0).shape == (15, 1)


@each_strategy
def test_an_unbuilt_model_predicts_sparse_data(strategy):
    x = tf.sparse.from_dense(np.eye(6, 4, dtype="float32"))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(2, kernel_initializer="ones")])

    outputs = model.predict(x, batch_size=3, verbose=0)

    np.testing.assert_array_equal(outputs, [[1, 1]] * 4 + [[0, 0]] * 2)
