"""Every draw and every element that is read passes by; tests/training/step/test_shared_calls.py."""

import operator

import keras
import pytest
import tensorflow as tf

from kerasdist.private import call_adapter
from kerasdist.training.context import peers
from tests import strategies

DRAWS = {
    "normal": lambda: tf.random.normal([2]),
    "uniform": lambda: tf.random.uniform([2]),
    "integers": lambda: tf.random.uniform([2], 0, 9, tf.int32),
    "truncated": lambda: tf.random.truncated_normal([2]),
    "gamma": lambda: tf.random.gamma([2], 1.0),
    "poisson": lambda: tf.random.poisson([2], 1.0),
    "categorical": lambda: tf.random.categorical([[0.5, 0.5]], 2),
    "shuffle": lambda: tf.random.shuffle([1, 2]),
    "stateless": lambda: tf.random.stateless_normal([2], [1, 2]),
    "generator": lambda: tf.random.Generator.from_seed(1).normal([2]),
    "Keras": lambda: keras.random.uniform((2,)),
    "dropout": lambda: keras.random.dropout(tf.ones([2]), 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_whatever_draws_is_handed_over(name):
    seen = []

    def draw(original, *args, **kwargs):
        seen.append(original)
        return original(*args, **kwargs)

    with call_adapter.handed_to(draw=draw, read=operator.call):
        DRAWS[name]()

    assert seen


@pytest.mark.parametrize("is_graph", [False, True])
def test_the_next_element_of_an_iterator_is_handed_over(is_graph):
    iterator = iter(tf.data.Dataset.range(5))
    seen = []

    def read(original, *args, **kwargs):
        seen.append(original)
        return original(*args, **kwargs)

    def take():
        return next(iterator), iterator.get_next_as_optional().get_value()

    with call_adapter.handed_to(draw=operator.call, read=read):
        taken = (tf.function(take) if is_graph else take)()

    assert [int(each) for each in taken] == [0, 1]
    assert len(seen) == 2


def test_an_iterator_is_put_back():
    iterator = iter(tf.data.Dataset.range(5).shuffle(3))
    next(iterator)
    resources = []

    def read(original, resource, *args, **kwargs):
        resources.append(resource)
        return original(resource, *args, **kwargs)

    with call_adapter.handed_to(draw=operator.call, read=read):
        next(iterator)
    state = call_adapter.state_of(resources[0])
    taken = [int(next(iterator)) for _ in range(3)]
    call_adapter.set_state(resources[0], state)

    assert [int(next(iterator)) for _ in range(3)] == taken


def test_operations_are_told_as_they_run_on_every_replica():
    told = []

    @tf.function
    def function(x):
        return tf.tanh(x)

    def on_replica():
        return function(tf.negative(2.0) * 3.0)

    with call_adapter.operations_told(lambda kind, inputs, outputs: told.append(kind)):
        peers.on_replicas(strategies.get("2 replicas"), on_replica)
    tf.exp(1.0)

    assert told.count("Neg") == told.count("Mul") == 2
    assert sum("function" in kind for kind in told) == 2
    assert not {"Tanh", "Exp"} & set(told)
