"""Every private name of the coordinator is where it was; tests/cluster shows what it does."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute.coordinator import cluster_coordinator, values
from tensorflow.python.eager import context, executor
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph

from kerasdist.private import coordinator_adapter

COORDINATOR_NAMES = [
    (cluster_coordinator.Cluster, ["workers", "closure_queue"]),
    (
        cluster_coordinator.Closure,
        [
            "_function",
            "_concrete_function",
            "build_output_remote_value",
            "execute_on",
            "maybe_call_with_output_remote_value",
        ],
    ),
    (
        cluster_coordinator.Worker,
        ["_on_closure_failure", "_on_resource_closure_failure", "_on_worker_recovery"],
    ),
    (cluster_coordinator.Worker, ["create_resource", "_is_dead_with_error"]),
    (cluster_coordinator._CoordinatedClosureQueue, ["_cancellation_mgr", "put"]),
    (values.RemoteValueImpl, ["_status_available_event", "_type_spec", "_set_values"]),
    (parameter_server_strategy_v2.ParameterServerStrategyV2Extended, ["_being_scheduled"]),
    (context.Context, ["add_c_function"]),
    (context, ["def executor_scope("]),
    (executor, ["def new_executor("]),
    (
        parameter_server_strategy_v2.ParameterServerStrategyV2,
        ["server_lib.ClusterDeviceFilters()", "device_filters.set_device_filters("],
    ),
    (atomic_function.from_func_graph, ["bound_context.add_c_function(", "context.context()"]),
    (func_graph, ["capture_call_time_value", "is_control_flow_graph", "outer_graph"]),
]


@pytest.mark.parametrize(("owner", "names"), COORDINATOR_NAMES)
def test_coordinator_has_the_names_that_are_used(owner, names):
    source = "".join(
        inspect.getsource(each) for each in getattr(owner, "__mro__", [owner]) if each is not object
    )

    assert [name for name in names if name not in source] == []


@pytest.mark.parametrize(
    "text",
    [*coordinator_adapter.LOST_WORKER_MESSAGES, coordinator_adapter.COORDINATOR_THREADS],
    ids=lambda text: text[:20],
)
def test_coordinator_logs_lost_workers_and_names_its_threads_as_expected(text):
    assert text in inspect.getsource(cluster_coordinator)


def test_somebody_hears_of_a_seed_before_it_is_set():
    acts, eager = [], context.context()

    coordinator_adapter.before_each_seed(lambda: acts.append(context.global_seed()))
    try:
        before = context.global_seed()
        tf.random.set_seed(123)
    finally:
        del eager._set_global_seed

    assert acts == [before] and context.global_seed() == 123
