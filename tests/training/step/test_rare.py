"""What a step does now and then."""

from typing import Any

import tensorflow as tf

from kerasdist.training.step import rare


def test_it_stays_one_operation_of_the_graph_and_acts_where_it_is_due():
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

    graph = step.get_concrete_function(tf.constant(True)).graph.as_graph_def()
    acting = [each for each in graph.library.function if num_additions(each.node_def)]
    assert [num_additions(each.node_def) for each in acting] == [20]
    assert acting[0].attr["_noinline"].b  # TensorFlow would put its operations into the branch.
    assert num_additions(graph.node) == 0


def num_additions(nodes) -> int:
    return sum(each.op == "AssignAddVariableOp" for each in nodes)


def test_a_value_of_either_branch():
    step = tf.function(
        lambda is_due: rare.cond(is_due, lambda: tf.constant(1), lambda: tf.constant(2)),
        autograph=False,
    )

    assert [int(step(tf.constant(each))) for each in (True, False)] == [1, 2]
