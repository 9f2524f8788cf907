"""What a traced function does with its variables is read from its graph."""

from typing import Any

import tensorflow as tf

from kerasdist.private import traced_graphs


def test_what_is_added_to_a_variable_is_found_in_the_graph():
    variable: Any = tf.Variable([1.0, 2.0])
    other: Any = tf.Variable(3.0)

    @tf.function
    def trace(added):
        sums = [variable + added, added + tf.identity(variable), tf.identity(added + variable)]
        others = [variable * 2.0, tf.maximum(variable, added), variable + variable, other + added]
        found = [traced_graphs.addend_of(variable, each) for each in (*sums, *others)]
        reads = [traced_graphs.is_read_for(variable, each) for each in others]
        assert found[0] is added
        return [each is not None for each in found], reads

    found, reads = trace(tf.constant([1.0, 1.0]))

    assert [bool(each) for each in found] == [True] * 3 + [False] * 4
    assert [bool(each) for each in reads] == [True, True, True, False]


def test_what_uses_a_variable_is_what_its_next_change_waits_for():
    variable = tf.Variable(1.0)
    found = []

    @tf.function(autograph=False)
    def use():
        variable.read_value()
        tf.cond(tf.random.uniform([]) > 0, variable.read_value, lambda: 0.0)
        found.extend(traced_graphs.uses_of(variable))
        variable.assign(2.0)

    graph = use.get_concrete_function().graph
    change = next(each for each in graph.get_operations() if each.type == "AssignVariableOp")

    assert [each.type for each in found] == ["ReadVariableOp", "If"]
    assert set(found) == set(change.control_inputs)


def test_what_a_function_only_reads_is_told_from_what_it_sets_at_any_depth():
    variables: list[Any] = [tf.Variable(0.0) for _ in range(4)]
    read, read_inside, changed, changed_inside = variables

    @tf.function(autograph=False)
    def inner():
        return read_inside + changed_inside.assign_add(1.0)

    @tf.function(autograph=False)
    def use():
        changed.assign(read + changed)
        return tf.while_loop(lambda total: total < 5.0, lambda total: [total + inner()], [0.0])

    found = traced_graphs.only_read_in(use.get_concrete_function().graph)

    assert {id(each) for each in found} == {id(read), id(read_inside)}


def test_a_function_whose_variable_is_there_no_longer_tells_nothing():
    variables = [tf.Variable(0.0)]
    use = tf.function(lambda: variables[0].read_value(), autograph=False)
    graph = use.get_concrete_function().graph
    variables.clear()

    assert not traced_graphs.only_read_in(graph)


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
