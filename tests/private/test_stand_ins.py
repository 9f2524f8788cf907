"""kerasdist.private.stand_ins: the private name of a variable holds what it did."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.private import stand_ins


def in_thread(function):
    results: list = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results


@pytest.mark.parametrize("decorate", [tf.function, lambda function: function])
def test_a_value_stands_in_where_it_is_traced_and_in_no_other_thread(decorate):
    variable = keras.Variable([1.0, 2.0])
    other, another, kind = tf.Variable([3.0, 4.0]), tf.Variable([5.0, 6.0]), type(variable)
    seen = []

    @decorate
    def step():
        with stand_ins.standing_in([variable], [other]):
            seen.extend(in_thread(variable.numpy))
            inner = tf.cond(tf.constant(True), lambda: variable.value + 1, lambda: variable.value)
            variable.assign_add([10.0, 10.0])
            with stand_ins.standing_in([variable], [another]):
                innermost = tf.identity(variable)
            stand_ins.stand_in([variable], [another])
            return inner, innermost, tf.identity(variable)

    results = [each.numpy().tolist() for each in step()]

    assert results == [[4, 5], [5, 6], [5, 6]]
    np.testing.assert_array_equal(seen, [[1, 2]])
    np.testing.assert_array_equal(other, [13, 14])
    np.testing.assert_array_equal(variable, [1, 2])
    assert type(variable) is kind  # Reading it takes no longer than before.


def test_replicas_that_trace_one_graph_share_what_stands_in():
    variable, other = keras.Variable(1.0), tf.Variable(2.0)

    @tf.function
    def step():
        graph = tf.compat.v1.get_default_graph()

        def read():
            with graph.as_default():
                return tf.identity(variable)

        with stand_ins.standing_in([variable], [other]):
            return in_thread(read)

    assert float(step()[0]) == 2
