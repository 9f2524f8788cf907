"""What a program asks TensorFlow about its replicas, answered as on one device.

Importing this file changes nothing.

tests/private/test_one_replica.py fails when one of these names moves. Written against TensorFlow
2.20 and 2.21.
"""

import contextlib
from collections.abc import Callable, Generator

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from kerasdist.private import names


@contextlib.contextmanager
def seen(
    is_seen: Callable[[], bool],
    *,
    all_reduce: Callable = lambda original, reduce_op, value: original(value),
) -> Generator[list]:
    """Lets programs see one replica in the threads where `is_seen()`: it has nobody to add up with.

    Nor has it somebody to gather from, and it is the first. TensorFlow's strategies compute with a
    number of their own, and work as they do.

    Args:
        is_seen: Whether the program in this thread is to see one.
        all_reduce: Called as all_reduce(original, reduce_op, value), also where it sees one.

    Yields:
        A list with an item for each time that the number of replicas was asked for there.
    """
    questions: list = []
    strategy, replica = distribute_lib.StrategyBase, distribute_lib.ReplicaContextBase
    gatherer = distribute_lib.ReplicaContext

    def number(original, owner):
        if not is_seen():
            return original(owner)
        questions.append(owner)
        return 1

    def reduce(original, owner, reduce_op, value, options=None):
        def reduce_own(value):
            own = _on_device(value)
            return own if is_seen() else original(owner, reduce_op, own, options)

        return all_reduce(reduce_own, reduce_op, value)

    def all_gather(original, owner, value, axis, options=None):
        if not is_seen():
            return original(owner, _on_device(value), axis, options)
        return tf.nest.map_structure(tf.identity, value)

    def replica_id(original, owner):
        # Programs find their own part of what is gathered by it.
        return tf.constant(0) if is_seen() else original(owner)

    replaced = {
        (strategy, "num_replicas_in_sync"): number,
        (replica, "all_reduce"): reduce,
        (gatherer, "all_gather"): all_gather,
        (replica, "replica_id_in_sync_group"): replica_id,
    }
    with names.replaced(replaced):
        yield questions


def _on_device(value):
    # Made on the replica's device: TensorFlow asks for one, which a batch on a worker has not.
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def num_replicas(strategy) -> int:
    """Returns the number of replicas there are, whatever programs see."""
    return strategy.extended._num_replicas_in_sync


def replica_id() -> int:
    """Returns the position of the replica of this thread, whatever programs see."""
    position = tf.distribute.get_replica_context()._replica_id_in_sync_group
    return position if isinstance(position, int) else int(tf.get_static_value(position))
