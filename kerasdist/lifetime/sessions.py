"""Sessions with the server of one task, apart from what the strategy does."""

import tensorflow as tf

from kerasdist.cluster import Task


def session(
    target: str, task: Task, graph: tf.Graph, *, timeout_secs: float = 0
) -> tf.compat.v1.Session:
    """Returns a session with the server of a task.

    It also reaches a task that was started again, and does not take part in what the strategy does.

    Args:
        target: The server: "grpc://a:2222".
        task: Whose server it is.
        graph: What is run there.
        timeout_secs: How long an operation may take; 0 for no limit.
    """
    config = tf.compat.v1.ConfigProto(
        # Without it, a session waits for every task of the cluster.
        device_filters=[f"/job:{task.job}/task:{task.index}"],
        operation_timeout_in_ms=int(timeout_secs * 1000),
    )
    return tf.compat.v1.Session(target, graph=graph, config=config)
