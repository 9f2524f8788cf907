"""Every private name of TensorFlow that is used is where it was, and does what it did."""

import inspect
import threading
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
from tests import strategies

EXTENDED = parameter_server_strategy_v2.ParameterServerStrategyV2Extended


@pytest.mark.parametrize(
    "name",
    ["_variable_partitioner", "_variable_count", "_num_ps", "_replica_ctx_update", "_update"],
)
def test_a_strategy_of_parameter_servers_has_the_names_that_are_used(name):
    source = "".join(inspect.getsource(each) for each in EXTENDED.__mro__[:-1])

    assert name in source


def test_dataset_is_the_same_from_its_graph():
    dataset = tf.data.Dataset.range(3).map(lambda number: 2 * number)

    graph = tensorflow_adapter.serialized(dataset)

    again = tensorflow_adapter.deserialized(graph, dataset.element_spec)
    assert [int(number) for number in again] == [0, 2, 4]


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


def test_global_seed_is_asked_for_without_a_draw():
    tf.random.set_seed(3)
    expected = float(tf.random.uniform([]))

    tf.random.set_seed(3)

    assert tensorflow_adapter.global_seed() == 3
    assert float(tf.random.uniform([])) == expected


def test_iterator_begins_in_the_state_of_another_one():
    def shuffled():
        return tf.data.Dataset.range(20).shuffle(20, seed=1).batch(20)

    dataset = shuffled()
    first, second = ([next(iter(dataset)).numpy().tolist()] for _ in range(2))
    dataset = shuffled()
    iter(dataset)
    state = tensorflow_adapter.state_of(iter(dataset))

    again = [
        batch.numpy().tolist() for batch in tensorflow_adapter.iterator_over(shuffled(), state)
    ]

    assert first != again == second


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


def test_batch_spec_opens_the_batch_axis_of_plain_and_distributed_data():
    dataset = tf.data.Dataset.from_tensors(tf.zeros([4, 3]))
    distributed = strategies.get("2 replicas").experimental_distribute_dataset(dataset)

    for spec in (dataset.element_spec, distributed.element_spec):
        assert tensorflow_adapter.batch_spec(spec).shape == (None, 3)


def test_a_profile_is_read(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    tf.add(1.0, 1.0)
    tf.profiler.experimental.stop()

    (path,) = tmp_path.rglob("*.xplane.pb")
    space = tensorflow_adapter.parsed_profile(path.read_bytes())
    assert any(line.events for plane in space.planes for line in plane.lines)


def state_of(iterator) -> bytes:
    state = tensorflow_adapter.iterator_state(iterator)
    assert state is not None
    return state


def batches_of(iterator):
    return [batch.numpy().tolist() for batch in iterator]


def shuffled():
    tf.random.set_seed(7)
    return tf.data.Dataset.range(20).shuffle(10).batch(4).prefetch(2)


def test_an_iterator_goes_on_in_the_state_of_another():
    dataset, other = shuffled(), shuffled()
    states, orders = [], []
    for _ in range(4):
        iterator = iter(dataset)
        states.append(state_of(iterator))
        orders.append(batches_of(iterator))

    iterator = iter(other)
    assert tensorflow_adapter.set_iterator_state(iterator, states[2])

    assert batches_of(iterator) == orders[2] != orders[3]
    assert batches_of(iter(other)) == orders[3]


def test_an_iterator_takes_no_state_of_another_pipeline():
    state = state_of(iter(shuffled()))

    for dataset in (shuffled().skip(1), tf.data.Dataset.range(20).shuffle(9).batch(4).prefetch(2)):
        assert not tensorflow_adapter.set_iterator_state(iter(dataset), state)
    assert not tensorflow_adapter.set_iterator_state(iter([1]), state)


def test_random_operations_and_python_have_no_state():
    noise = tf.data.Dataset.range(3).map(lambda _: tf.random.uniform([]))
    python = tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec([]))

    for iterator in (iter(noise), iter(python), iter(range(3))):
        assert tensorflow_adapter.iterator_state(iterator) is None


def test_shuffles_are_found_in_all_inputs():
    one = tf.data.Dataset.range(9).shuffle(5)
    other = tf.data.Dataset.range(9).shuffle(7).map(lambda x: x).prefetch(tf.data.AUTOTUNE)

    assert tensorflow_adapter.num_shuffled(tf.data.Dataset.zip(one, other).batch(2)) == 12
    assert tensorflow_adapter.num_shuffled([1, 2]) == 0


def test_shuffles_are_found_in_what_was_made_of_itself():
    dataset = tf.data.Dataset.range(9).shuffle(5)
    for _ in range(40):
        dataset = dataset.concatenate(dataset)

    assert tensorflow_adapter.num_shuffled(dataset) == 5


def test_the_files_of_caches_are_found_in_all_inputs():
    one, other = (tf.data.Dataset.range(3).cache(path) for path in ("", "/folder/file"))

    assert tensorflow_adapter.cache_files(tf.data.Dataset.zip(one, other).batch(2)) == [
        "/folder/file"
    ]
    assert tensorflow_adapter.cache_files([1, 2]) == []


def test_the_batch_size_of_a_dataset_is_found():
    rows = tf.data.Dataset.range(9)

    assert tensorflow_adapter.batch_size_of(rows.batch(4).map(lambda x: x).prefetch(2)) == 4
    assert tensorflow_adapter.batch_size_of(rows.batch(4).unbatch().batch(3)) == 3
    for unknown in (rows, tf.data.Dataset.zip(rows.batch(2), rows.batch(2)), [1], None):
        assert tensorflow_adapter.batch_size_of(unknown) is None


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


def test_who_sees_one_replica_has_all_there_is_and_is_the_first():
    strategy = strategies.get("2 replicas")
    local = threading.local()  # Replicas have threads of their own; TensorFlow's work as ever.

    def replica_fn():
        context: Any = tf.distribute.get_replica_context()
        value = tf.fill([2], context.replica_id_in_sync_group + 1)
        local.is_seen = True
        own = [
            context.all_gather({"a": value}, axis=0)["a"],
            context.all_reduce("SUM", value),
            context.replica_id_in_sync_group,
        ]
        local.is_seen = False
        return [*own, context.all_gather(value, axis=0)]

    with tensorflow_adapter.one_replica_seen(lambda: getattr(local, "is_seen", False)):
        found = strategy.run(replica_fn)

    replicas = zip(*map(strategy.experimental_local_results, found), strict=True)
    assert [[each.numpy().tolist() for each in replica] for replica in replicas] == [
        [[1, 1], [1, 1], 0, [1, 1, 2, 2]],
        [[2, 2], [2, 2], 0, [1, 1, 2, 2]],
    ]


@pytest.mark.parametrize("deployment", ["one device", "2 replicas"])
def test_a_variable_knows_the_strategy_that_it_was_created_in(deployment):
    strategy = strategies.get(deployment)
    with strategy.scope():
        inside = tf.Variable(1.0)

    assert tensorflow_adapter.owner_of(inside) is strategy
    assert tensorflow_adapter.owner_of(tf.Variable(1.0)) is None
