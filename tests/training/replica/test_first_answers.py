"""What the first replica has got, told to the others."""

import itertools

import tensorflow as tf

from kerasdist.training.replica.first_answers import FirstAnswers


def asked():
    """Returns answers of two replicas, and what gives a new number each time that it is asked."""
    told: list = []
    numbers = itertools.count(1)
    return [FirstAnswers(told, is_first=is_first) for is_first in (True, False)], numbers.__next__


def test_the_others_get_each_answer_once_and_in_order():
    (first, other), ask = asked()

    assert [first.get("dice", ask), first.get("coin", ask)] == [1, 2]
    assert [other.get("dice", ask), other.get("coin", ask), other.get("coin", ask)] == [1, 2, 3]


def test_who_asks_something_else_asks_by_itself():
    (first, other), ask = asked()

    assert first.get("dice", ask) == 1
    assert other.get("coin", ask) == 2


def test_a_tensor_of_another_graph_is_asked_for_once_more():
    (first, other), _ = asked()

    with tf.Graph().as_default():
        of_first = first.get("dice", lambda: {"a": tf.constant(1)})
    with tf.Graph().as_default():
        of_other = other.get("dice", lambda: {"a": tf.constant(2)})

    assert of_other["a"].graph is not of_first["a"].graph


def test_a_replica_alone_asks():
    answers = FirstAnswers.of_the_first()

    assert [answers.get("dice", lambda: 6), answers.is_first] == [6, True]
