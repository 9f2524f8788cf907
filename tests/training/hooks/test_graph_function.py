"""What steps trace: no retracing for many models, and what is rare costs little."""

from typing import Any

import tensorflow as tf

from kerasdist.training.hooks.graph_function import graph_function, rare_cond


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


def test_what_is_rare_stays_one_operation_of_the_graph_and_acts_where_it_is_due():
    total: Any = tf.Variable(0.0)

    def act():
        for _ in range(20):
            total.assign_add(1.0)

    @tf.function(autograph=False)
    def step(is_due):
        rare_cond(is_due, act)

    step(tf.constant(False))
    assert total.numpy() == 0
    step(tf.constant(True))
    assert total.numpy() == 20

    graph = step.get_concrete_function(tf.constant(True)).graph.as_graph_def()
    acting = [each for each in graph.library.function if num_additions(each.node_def)]
    assert [num_additions(each.node_def) for each in acting] == [20]
    assert acting[0].attr["_noinline"].b  # TensorFlow would put its operations into the branch.
    assert num_additions(graph.node) == 0


def num_additions(nodes) -> int:
    return sum(each.op == "AssignAddVariableOp" for each in nodes)


def test_what_is_rare_has_a_value_in_either_branch():
    step = tf.function(
        lambda is_due: rare_cond(is_due, lambda: tf.constant(1), lambda: tf.constant(2)),
        autograph=False,
    )

    assert [int(step(tf.constant(each))) for each in (True, False)] == [1, 2]
