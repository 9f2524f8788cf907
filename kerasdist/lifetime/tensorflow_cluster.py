"""The cluster in TensorFlow's words: who is in it, and the queues of its servers."""

import tensorflow as tf

from kerasdist.cluster import Cluster, Task


def cluster_spec(cluster: Cluster) -> tf.train.ClusterSpec:
    """Returns the jobs and their addresses, as TensorFlow's servers take them."""
    return tf.train.ClusterSpec({job: list(addresses) for job, addresses in cluster.jobs.items()})


def make_resolver(
    cluster: Cluster, *, num_accelerators: dict[str, int] | None = None
) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns what TensorFlow's strategies ask for the cluster.

    Args:
        cluster: The tasks, and which one this is.
        num_accelerators: Devices of each worker by kind; None lets TensorFlow count them.
    """
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster_spec(cluster),
        task_type=cluster.task.job,
        task_id=cluster.task.index,
        rpc_layer="grpc",
        num_accelerators=num_accelerators,
    )


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


def queues(*names: str) -> tuple[tf.Graph, list[tf.queue.FIFOQueue]]:
    """Returns a graph with queues of texts, which sessions with one server share by their names."""
    with tf.Graph().as_default() as graph, tf.device("CPU:0"):
        return graph, [
            tf.queue.FIFOQueue(8, [tf.string], shapes=[()], shared_name=name) for name in names
        ]
