"""The private names of TensorFlow's coordination service.

It knows which tasks of a cluster live, and carries short messages between them.

tests/private/test_service_adapter.py fails when one of these names moves, tests/cluster when one
does something else. Written against TensorFlow 2.20 and 2.21.
"""

import contextlib

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from kerasdist.cluster import Cluster


def set_heartbeat_timeout(cluster: Cluster, secs: float) -> None:
    """Sets how long a worker may be silent; call it before the strategy is made.

    TensorFlow has no other way than its private one, and leaves alone what is set already.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.chief.job}/replica:0/task:{cluster.chief.index}",
        heartbeat_timeout_in_ms=int(secs * 1000),
        coordinated_jobs=[
            # Protocol buffers make their classes at run time.
            coordination_config_pb2.CoordinatedJob(  # ty: ignore[missing-attribute]
                name=job, num_tasks=len(addresses)
            )
            for job, addresses in cluster.jobs.items()
        ],
    )


def post(key: str) -> None:
    """Sets a key at TensorFlow's coordination service, unless it is set."""
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.context().set_config_key_value(key, "posted")


def is_posted(key: str, *, secs: float) -> bool:
    """Waits until a worker has set a key, at most so long; returns whether one has."""
    try:
        context.context().get_config_key_value(key, int(secs * 1000))
    except tf.errors.DeadlineExceededError:
        return False
    return True


def replace(key: str, value: str) -> None:
    """Sets a key at TensorFlow's coordination service, or nothing where the service is gone."""
    with contextlib.suppress(tf.errors.OpError):
        context.context().delete_config_key_value(key)
    with contextlib.suppress(tf.errors.OpError):
        context.context().set_config_key_value(key, value)


def read(key: str, *, secs: float) -> str:
    """Returns what a worker has set, waiting for it at most so long; "" where there is nothing."""
    try:
        return context.context().get_config_key_value(key, int(secs * 1000))
    except tf.errors.OpError:
        return ""


def report_error(message: str) -> None:
    """Lets the collectives of all other workers fail with a message."""
    context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)
