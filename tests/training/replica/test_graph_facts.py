"""What is read, set and drawn in a function that is traced."""

from typing import Any

import tensorflow as tf

from kerasdist.training.replica import graph_facts


def test_what_is_added_to_a_variable_is_found_in_the_graph():
    variable: Any = tf.Variable([1.0, 2.0])
    other: Any = tf.Variable(3.0)

    @tf.function
    def trace(added):
        sums = [variable + added, added + tf.identity(variable), tf.identity(added + variable)]
        others = [variable * 2.0, tf.maximum(variable, added), variable + variable, other + added]
        found = [graph_facts.addend_of(variable, each) for each in (*sums, *others)]
        reads = [graph_facts.is_read_for(variable, each) for each in others]
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
        found.extend(graph_facts.uses_of(variable))
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

    found = graph_facts.only_read_in(use.get_concrete_function().graph)

    assert {id(each) for each in found} == {id(read), id(read_inside)}


def test_a_function_whose_variable_is_there_no_longer_tells_nothing():
    variables = [tf.Variable(0.0)]
    use = tf.function(lambda: variables[0].read_value(), autograph=False)
    graph = use.get_concrete_function().graph
    variables.clear()

    assert not graph_facts.only_read_in(graph)


def test_rows_of_a_table_that_are_looked_up_are_read():
    table, rows = tf.Variable([[1.0], [2.0]]), []

    @tf.function(autograph=False)
    def use(row):
        rows.append(tf.gather(table, row))
        return rows[0]

    graph = use.get_concrete_function(tf.constant([1])).graph

    (found,) = graph_facts.only_read_in(graph)
    assert found is table
    (handle,) = graph_facts.handles_of([table], graph)
    assert any(each is handle for each in graph_facts.upstream(rows))


def test_a_branch_is_computed_from_what_it_takes_from_outside():
    found, graphs = [], []

    @tf.function(autograph=False)
    def use(decided, given, other):
        def branch():
            found.extend(graph_facts.upstream([given * 2.0]))
            graphs.append(tf.compat.v1.get_default_graph())
            return given

        result = tf.cond(decided, branch, lambda: other)
        found.extend(graph_facts.deciding(graphs[0]))
        outer = [each for each in (decided, given, other) if any(each is one for one in found)]
        assert [each.name for each in outer] == [decided.name, given.name]
        return result

    use(tf.constant(True), tf.constant(1.0), tf.constant(2.0))


def test_what_draws_from_a_state_of_its_own_is_found_at_any_depth():
    def of(draw):
        inner = tf.function(draw, autograph=False)
        function = tf.function(lambda: inner() + 1.0, autograph=False)
        return graph_facts.has_state_of_draws(function.get_concrete_function().graph)

    assert of(lambda: tf.random.normal([]))
    assert not of(lambda: tf.random.stateless_normal([], seed=(1, 2)))


def test_what_is_set_together_with_a_variable_is_found_in_functions_that_take_no_arguments():
    variable, other = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function(autograph=False)
    def use(x, y):
        def act():
            other.assign(x)
            return variable.assign(2 * y)

        tf.function(act, autograph=False)()
        variable.assign_add(1.0)

    scalar = tf.TensorSpec((), tf.float32)
    graph = use.get_concrete_function(scalar, scalar).graph
    (handle,) = graph_facts.handles_of([variable], graph)
    assert handle is not None

    found = {tensor.op.name for tensor in graph_facts.upstream(graph_facts.inputs_beside(handle))}

    x, y, *_ = graph.inputs
    assert y.op.name in found
    assert x.op.name not in found
