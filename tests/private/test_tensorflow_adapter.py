"""Every private name of TensorFlow that is used is where it was, and does what it did."""

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    parameter_server_strategy_v2,
)
from tensorflow.python.ops import collective_ops

from kerasdist.private import tensorflow_adapter
from kerasdist.training.context import peers
from tests import strategies

EXTENDED = parameter_server_strategy_v2.ParameterServerStrategyV2Extended


def test_a_function_of_tensorflow_can_be_made_again_of_another_python():
    double = tf.function(lambda x: 2 * x, jit_compile=False)

    triple: Any = double._clone(lambda x: 3 * x)

    assert int(triple(tf.constant(2))) == 6


def test_what_is_added_to_a_variable_is_found_in_the_graph():
    variable: Any = tf.Variable([1.0, 2.0])
    other: Any = tf.Variable(3.0)

    @tf.function
    def trace(added):
        sums = [variable + added, added + tf.identity(variable), tf.identity(added + variable)]
        others = [variable * 2.0, tf.maximum(variable, added), variable + variable, other + added]
        found = [tensorflow_adapter.addend_of(variable, each) for each in (*sums, *others)]
        reads = [tensorflow_adapter.is_read_for(variable, each) for each in others]
        assert found[0] is added
        return [each is not None for each in found], reads

    found, reads = trace(tf.constant([1.0, 1.0]))

    assert [bool(each) for each in found] == [True] * 3 + [False] * 4
    assert [bool(each) for each in reads] == [True, True, True, False]


@pytest.mark.parametrize(
    "name",
    ["_variable_partitioner", "_variable_count", "_num_ps", "_replica_ctx_update", "_update"],
)
def test_a_strategy_of_parameter_servers_has_the_names_that_are_used(name):
    source = "".join(inspect.getsource(each) for each in EXTENDED.__mro__[:-1])

    assert name in source


def test_a_variable_of_replicas_holds_one_from_outside():
    outside, strategy = tf.Variable(1.0), strategies.get("3 replicas")

    with tensorflow_adapter.held_by_first_replica(outside, strategy), strategy.scope():
        made = tf.Variable(
            2.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )

    first, *others = strategy.experimental_local_results(made)
    assert first is outside
    assert made.synchronization == tf.VariableSynchronization.ON_READ
    assert [float(each) for each in (first, *others)] == [2.0] * 3


def test_what_uses_a_variable_is_what_its_next_change_waits_for():
    variable = tf.Variable(1.0)
    found = []

    @tf.function(autograph=False)
    def use():
        variable.read_value()
        tf.cond(tf.random.uniform([]) > 0, variable.read_value, lambda: 0.0)
        found.extend(tensorflow_adapter.uses_of(variable))
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

    found = tensorflow_adapter.only_read_in(use.get_concrete_function().graph)

    assert {id(each) for each in found} == {id(read), id(read_inside)}


def test_a_function_whose_variable_is_there_no_longer_tells_nothing():
    variables = [tf.Variable(0.0)]
    use = tf.function(lambda: variables[0].read_value(), autograph=False)
    graph = use.get_concrete_function().graph
    variables.clear()

    assert not tensorflow_adapter.only_read_in(graph)


def test_tensorflow_may_be_nondeterministic_until_it_is_asked():
    assert not tensorflow_adapter.is_deterministic()  # tests/cluster/test_determinism.py asks it.


def test_global_seed_is_asked_for_without_a_draw():
    tf.random.set_seed(3)
    expected = float(tf.random.uniform([]))

    tf.random.set_seed(3)

    assert tensorflow_adapter.global_seed() == 3
    assert float(tf.random.uniform([])) == expected


@pytest.mark.parametrize("kind", ["of two devices", "in two parts"])
def test_variables_are_numbers_and_arrays_inside_a_scope_too(kind):
    strategy = strategies.get("2 replicas")
    with strategy.scope():
        variable: Any = tf.Variable([2.5])
    if kind == "in two parts":
        halves = [tf.Variable([value]) for value in (2.5, 3.5)]
        variable = tensorflow_adapter.ShardedVariable(halves)

    with strategy.scope():
        np.testing.assert_array_equal(np.array(variable), variable.numpy())
        assert np.asarray(variable, "float64").dtype == "float64"
        scalar: Any = tf.Variable(2.5)
        assert (float(scalar), int(scalar), np.array(scalar).shape) == (2.5, 2, ())


def test_a_profile_is_read(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    tf.add(1.0, 1.0)
    tf.profiler.experimental.stop()

    (path,) = tmp_path.rglob("*.xplane.pb")
    space = tensorflow_adapter.parsed_profile(path.read_bytes())
    assert any(line.events for plane in space.planes for line in plane.lines)


def test_a_checkpoint_of_objects_holds_the_names_of_its_variables(tmp_path):
    path = tf.train.Checkpoint(weight=tf.Variable(1.0, name="w")).write(str(tmp_path / "objects"))
    content = tf.train.load_variable(path, "_CHECKPOINTABLE_OBJECT_GRAPH")

    names = tensorflow_adapter.full_names(content)
    assert names["weight/.ATTRIBUTES/VARIABLE_VALUE"] == "w"


def test_several_workers_get_first_values_through_the_functions_that_are_replaced():
    source = inspect.getsource(collective_all_reduce_strategy.CollectiveAllReduceExtended)

    assert "collective_ops.broadcast_send(" in source
    assert "collective_ops.broadcast_recv(" in source


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e5m2", "int8", "uint8", "int16", "float32", "int64", "bool"]
)
def test_what_is_broadcast_comes_in_its_own_dtype(monkeypatch, dtype):
    sent = []
    monkeypatch.setattr(collective_ops, "broadcast_send", lambda value, *args: sent.append(value))
    monkeypatch.setattr(collective_ops, "broadcast_recv", lambda *args: sent[0])
    value = tf.cast(tf.constant([0, 0.5, 96]), dtype)  # 96 is a float8, too.

    with tensorflow_adapter.wide_broadcasts():
        collective_ops.broadcast_send(value, value.shape, value.dtype, 2, 1, 1)
        received = collective_ops.broadcast_recv(value.shape, value.dtype, 2, 1, 1)

    assert sent[0].dtype in (tf.bool, tf.float32, tf.int32, tf.int64)
    assert received.dtype == value.dtype
    assert np.array_equal(received, value)


def test_what_tensorflow_does_not_call_floating_is_broadcast_with_its_fractions():
    class Float8:  # As with versions of ml_dtypes whose float8 is none of numpy's kinds.
        size, is_floating, is_integer = 1, False, False

    assert tensorflow_adapter._sendable(Float8()) == tf.float32  # ty: ignore[invalid-argument-type]


@pytest.mark.parametrize("deployment", ["one device", "2 replicas"])
def test_a_variable_knows_the_strategy_that_it_was_created_in(deployment):
    strategy = strategies.get(deployment)
    with strategy.scope():
        inside = tf.Variable(1.0)

    assert tensorflow_adapter.owner_of(inside) is strategy
    assert tensorflow_adapter.owner_of(tf.Variable(1.0)) is None


def test_the_graph_of_a_function_that_is_called_is_found():
    @tf.function
    def inner(x):
        return 2.0 * x

    @tf.function
    def outer(x):
        return inner(x)

    graph = outer.get_concrete_function(tf.constant(1.0)).graph

    found = [tensorflow_adapter.called_graph(each) for each in graph.get_operations()]
    [called] = [each for each in found if each is not None]
    assert "Mul" in [each.type for each in called.get_operations()]


def test_a_loop_that_is_vectorized_in_the_graph_around_it_is_known():
    found = []

    def look(x):
        found.append(tensorflow_adapter.is_being_vectorized())
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


def test_what_a_tape_records_is_known():
    assert not tensorflow_adapter.is_recorded()
    with tf.GradientTape() as tape:
        assert tensorflow_adapter.is_recorded()
        with tape.stop_recording():
            assert not tensorflow_adapter.is_recorded()


def test_operations_are_told_as_they_run_on_every_replica():
    told = []

    @tf.function
    def function(x):
        return tf.tanh(x)

    def on_replica():
        return function(tf.negative(2.0) * 3.0)

    with tensorflow_adapter.operations_told(lambda kind, inputs, outputs: told.append(kind)):
        peers.on_replicas(strategies.get("2 replicas"), on_replica)
    tf.exp(1.0)

    assert told.count("Neg") == told.count("Mul") == 2
    assert sum("function" in kind for kind in told) == 2
    assert not {"Tanh", "Exp"} & set(told)
