"""What steps trace is no retracing of one function, however many models there are."""

import tensorflow as tf

from kerasdist.training.step.graph_function import graph_function


class Model:
    def __init__(self, number):
        self.number = number

    def add(self, value):
        return value + self.number


def test_the_methods_of_many_models_are_traced_once_each_without_a_warning(caplog):
    tf.get_logger().addHandler(caplog.handler)
    try:
        functions = [graph_function(Model(number).add) for number in range(8)]
        results = [int(function(tf.constant(1))) for function in functions]
    finally:
        tf.get_logger().removeHandler(caplog.handler)

    assert results == list(range(1, 9))
    assert "retracing" not in caplog.text
