"""Where the variables of a strategy live."""

from typing import Any

import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.context import deployment, peers, traits
from tests import strategies
from tests.strategies import each_strategy

TWO_WORKERS = Cluster(
    jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, task=Task("chief", 0)
)


@each_strategy
def test_replicas_hold_their_variables(strategy):
    assert not traits.has_remote_variables(strategy)
    assert not traits.is_async(strategy)


def test_a_strategy_of_tensorflows_is_no_deployment_of_ours():
    strategy: Any = tf.distribute.get_strategy()

    assert deployment.of(strategy) == deployment.of(None)
    assert traits.is_one_device(strategy)


def test_what_is_on_parameter_servers_is_known_of_a_deployment_alone():
    strategy = strategies.spanning(TWO_WORKERS, has_remote_variables=True, is_async=True)

    assert traits.has_remote_variables(strategy)
    assert traits.is_async(strategy)
    # The chief has no peers there.
    assert peers.count(strategy) == 1
    assert peers.num_workers(strategy) == 2
    assert peers.task_of(strategy) == "chief 0"
