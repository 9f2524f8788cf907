"""What a step does now and then."""

from typing import Any

import tensorflow as tf

from kerasdist.training.step import rare


def test_it_is_one_operation_of_the_graph_and_acts_where_it_is_due():
    total: Any = tf.Variable(0.0)

    def act():
        for _ in range(20):
            total.assign_add(1.0)

    @tf.function(autograph=False)
    def step(is_due):
        rare.cond(is_due, act)

    step(tf.constant(False))
    assert total.numpy() == 0
    step(tf.constant(True))
    assert total.numpy() == 20
    graph = step.get_concrete_function(tf.constant(True)).graph
    (condition,) = (each for each in graph.get_operations() if each.type == "If")
    branch = graph.get_operations()[0].graph._get_function(condition.get_attr("then_branch").name)
    types = [node.op for node in branch.cached_definition.node_def]
    assert [each for each in types if "AssignAdd" in each] == []


def test_a_value_of_either_branch():
    step = tf.function(
        lambda is_due: rare.cond(is_due, lambda: tf.constant(1), lambda: tf.constant(2)),
        autograph=False,
    )

    assert [int(step(tf.constant(each))) for each in (True, False)] == [1, 2]
