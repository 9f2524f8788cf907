"""The private names of strategies are where they were, and do what they did."""

import inspect
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2

from kerasdist.private import strategy_adapter
from tests import strategies

EXTENDED = parameter_server_strategy_v2.ParameterServerStrategyV2Extended


def test_a_function_of_tensorflow_can_be_made_again_of_another_python():
    double = tf.function(lambda x: 2 * x, jit_compile=False)

    triple: Any = double._clone(lambda x: 3 * x)

    assert int(triple(tf.constant(2))) == 6


@pytest.mark.parametrize(
    "name",
    ["_variable_partitioner", "_variable_count", "_num_ps", "_replica_ctx_update", "_update"],
)
def test_a_strategy_of_parameter_servers_has_the_names_that_are_used(name):
    source = "".join(inspect.getsource(each) for each in EXTENDED.__mro__[:-1])

    assert name in source


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
            tf.constant(context.num_replicas_in_sync),
            tf.constant(strategy_adapter.replica_id()),
            tf.constant(strategy_adapter.num_replicas(strategy)),
        ]
        local.is_seen = False
        return [*own, context.all_gather(value, axis=0)]

    with strategy_adapter.one_replica_seen(lambda: getattr(local, "is_seen", False)):
        found = strategy.run(replica_fn)

    replicas = zip(*map(strategy.experimental_local_results, found), strict=True)
    assert [[np.asarray(each).tolist() for each in replica] for replica in replicas] == [
        [[1, 1], [1, 1], 0, 1, 0, 2, [1, 1, 2, 2]],
        [[2, 2], [2, 2], 0, 1, 1, 2, [1, 1, 2, 2]],
    ]
