"""Which of the replicas are on this worker; sums over several workers are in tests/cluster."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.context import peers
from kerasdist.training.context.deployment import Deployment
from tests.strategies import each_kind_of_strategy


def strategy_of(job, index, *, num_replicas=6):
    cluster = Cluster(jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"]}, task=Task(job, index))
    extended = SimpleNamespace(_num_replicas_in_sync=num_replicas)
    return SimpleNamespace(deployment=Deployment(cluster=cluster), extended=extended)


@pytest.mark.parametrize(
    ("job", "index", "replicas"),
    [("chief", 0, [0, 1]), ("worker", 0, [2, 3]), ("worker", 1, [4, 5])],
)
def test_replicas_are_numbered_along_the_workers_from_the_chief_on(job, index, replicas):
    strategy = strategy_of(job, index)

    assert peers.count(strategy) == 3
    assert list(peers.local_replicas(strategy)) == replicas
    assert peers.is_chief(strategy) == (job == "chief")


@each_kind_of_strategy
def test_one_machine_has_all_replicas_and_no_peers(strategy):
    assert peers.count(strategy) == 1
    assert peers.is_chief(strategy)
    assert len(peers.local_replicas(strategy)) == strategy.num_replicas_in_sync

    ids = strategy.run(lambda: tf.constant(peers.replica_id()))

    ids = strategy.experimental_local_results(ids)
    assert [int(each) for each in ids] == list(peers.local_replicas(strategy))


@each_kind_of_strategy
def test_numbers_of_one_worker_are_their_sum(strategy):
    total = peers.sum_over(strategy, [[1, 2], [3, 4]])

    assert total.dtype == np.float64
    assert total.tolist() == [[1, 2], [3, 4]]


@each_kind_of_strategy
def test_variables_with_a_value_per_replica_get_their_mean(strategy):
    with strategy.scope():
        variable = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    strategy.run(lambda: variable.assign(float(peers.replica_id())))

    peers.assign_mean(strategy, [variable])

    copies = strategy.experimental_local_results(strategy.run(variable.read_value))
    mean = (strategy.num_replicas_in_sync - 1) / 2
    assert [float(copy) for copy in copies] == [mean] * strategy.num_replicas_in_sync


@pytest.mark.parametrize(
    ("job", "index", "is_first"),
    [("chief", 0, True), ("worker", 0, False), ("worker", 1, True), ("worker", 2, False)],
)
def test_the_first_peer_of_each_host_comes_before_the_others(job, index, is_first):
    addresses = {"chief": ["a:9"], "worker": ["a:1", "b:9", "b:1"]}
    cluster = Cluster(jobs=addresses, task=Task(job, index))
    strategy = SimpleNamespace(deployment=Deployment(cluster=cluster))
    assert peers.is_first_on_machine(strategy) is is_first
    assert peers.is_first_on_machine(tf.distribute.get_strategy())
