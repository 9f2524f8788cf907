"""A rehearsal sees one replica; tests/training/step/test_rehearsal.py shows the rest."""

import contextlib
import threading
from typing import Any

import tensorflow as tf

from kerasdist.private import rehearsal_adapter
from tests import strategies


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

    with rehearsal_adapter.one_replica_seen(lambda: getattr(local, "is_seen", False)):
        found = strategy.run(replica_fn)

    replicas = zip(*map(strategy.experimental_local_results, found), strict=True)
    assert [[each.numpy().tolist() for each in replica] for replica in replicas] == [
        [[1, 1], [1, 1], 0, [1, 1, 2, 2]],
        [[2, 2], [2, 2], 0, [1, 1, 2, 2]],
    ]


def test_what_would_be_traced_into_a_graph_of_its_own_is_known():
    depth = []

    @contextlib.contextmanager
    def enter():
        depth.append("inner")
        yield
        depth.pop()

    def look(*_):
        return tf.constant(len(depth))

    with rehearsal_adapter.inner_graphs_entered(enter):
        found = [
            look(),
            tf.cond(tf.constant(True), look, look),
            tf.while_loop(lambda number: number < 1, lambda _: [look()], [0])[0],
            tf.map_fn(look, tf.zeros([1], tf.int32))[0],
        ]

    assert [int(each) for each in found] == [0, 1, 1, 1]
    assert int(tf.cond(tf.constant(True), look, look)) == 0
