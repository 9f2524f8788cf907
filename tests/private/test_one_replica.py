"""A program sees one replica where it is to give what one device gives."""

import threading
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import one_replica
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
            tf.constant(context.num_replicas_in_sync),
            tf.constant(one_replica.replica_id()),
            tf.constant(one_replica.num_replicas(strategy)),
        ]
        local.is_seen = False
        return [*own, context.all_gather(value, axis=0)]

    with one_replica.seen(lambda: getattr(local, "is_seen", False)):
        found = strategy.run(replica_fn)

    replicas = zip(*map(strategy.experimental_local_results, found), strict=True)
    assert [[np.asarray(each).tolist() for each in replica] for replica in replicas] == [
        [[1, 1], [1, 1], 0, 1, 0, 2, [1, 1, 2, 2]],
        [[2, 2], [2, 2], 0, 1, 1, 2, [1, 1, 2, 2]],
    ]
