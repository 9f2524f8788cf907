"""The cluster in TensorFlow's words."""

import tensorflow as tf

from kerasdist.cluster import Cluster


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
