"""What a traced function calls, and what is only read there, is known to its graph."""

from typing import Any

import tensorflow as tf

from kerasdist.private import traced_graphs


def test_a_loop_tells_which_variables_the_functions_in_it_only_read():
    read: Any = tf.Variable(0.0)
    changed: Any = tf.Variable(0.0)

    @tf.function(autograph=False)
    def use():
        step = tf.function(lambda total: read + changed.assign_add(total), autograph=False)
        return tf.while_loop(lambda total: total < 5.0, lambda total: [step(total)], [1.0])

    graph: Any = use.get_concrete_function().graph

    handles = {id(outer): inner for outer, inner in graph.captures}
    [loop] = [each for each in graph.get_operations() if each.type == "While"]
    assert traced_graphs.only_reads_inside(loop, handles[id(read.handle)])
    assert not traced_graphs.only_reads_inside(loop, handles[id(changed.handle)])
    assert not traced_graphs.only_reads_inside(loop.inputs[0].op, handles[id(read.handle)])


def test_the_graph_of_a_function_that_is_called_is_found():
    @tf.function
    def inner(x):
        return 2.0 * x

    @tf.function
    def outer(x):
        return inner(x)

    graph = outer.get_concrete_function(tf.constant(1.0)).graph

    found = [traced_graphs.called_graph(each) for each in graph.get_operations()]
    [called] = [each for each in found if each is not None]
    assert "Mul" in [each.type for each in called.get_operations()]


def test_a_loop_that_is_vectorized_in_the_graph_around_it_is_known():
    found = []

    def look(x):
        found.append(traced_graphs.is_being_vectorized())
        return x

    @tf.function(autograph=False)
    def step(x):
        look(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.custom_gradient(lambda x: (2 * x, look))(x)
        return tf.vectorized_map(look, tape.jacobian(y, x))

    step(tf.ones([3]))

    assert found == [False, True, True]
