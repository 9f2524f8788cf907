"""Things without those that are the same."""

import keras

from kerasdist.unique import unique


def test_each_variable_comes_once_in_the_order_of_the_first():
    first, second = keras.Variable(1.0), keras.Variable(1.0)

    found = unique([second, first, second])

    assert [id(each) for each in found] == [id(second), id(first)]
