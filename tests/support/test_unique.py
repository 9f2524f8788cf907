"""Things that are the same come once, and those that have the same name get others."""

import keras

from kerasdist.support.unique import by_unique_name, unique


def test_each_variable_comes_once_in_the_order_of_the_first():
    first, second = keras.Variable(1.0), keras.Variable(1.0)

    found = unique([second, first, second])

    assert [id(each) for each in found] == [id(second), id(first)]


def test_all_but_the_first_of_one_name_get_a_number():
    named = by_unique_name(["a", "B", "b", "b"], str.lower)

    assert named == {"a": "a", "b": "B", "b#2": "b", "b#3": "b"}
