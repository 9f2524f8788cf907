"""Sessions with the server of one task, beside what the strategy does."""

import tensorflow as tf

from kerasdist.cluster import Task


def session(
    target: str, task: Task, graph: tf.Graph, *, timeout_secs: float = 0
) -> tf.compat.v1.Session:
    """Returns a session with the server of a task.

    It reaches also a task that was started again, and is no part of what the strategy does.

    Args:
        target: The server: "grpc://a:2222".
        task: Whose server it is.
        graph: What is run there.
        timeout_secs: How long an operation may take; 0 for as long as it likes.
    """
    config = tf.compat.v1.ConfigProto(
        # Without it, a session waits for every task of the cluster.
        device_filters=[f"/job:{task.job}/task:{task.index}"],
        operation_timeout_in_ms=int(timeout_secs * 1000),
    )
    return tf.compat.v1.Session(target, graph=graph, config=config)
