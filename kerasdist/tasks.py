"""What a script asks on several tasks: is this the chief, and has everyone arrived?"""

from typing import Any

from kerasdist.cluster import Cluster
from kerasdist.preflight import wait_for_peers
from kerasdist.support import memory
from kerasdist.support.checks import check_positive


def is_chief() -> bool:
    """Whether this process is the one that writes files and shows progress.

    True on one machine without a cluster. It may be called before `make_strategy`, and then reads
    the variables of the environment as that does, but waits for nobody.

    Raises:
        ValueError: These variables are wrong.

    Example:
        ```python
        if kerasdist.is_chief():
            print(history.history)
        ```
    """
    return _cluster(meet=False).is_chief


def barrier(name: str = "barrier", *, timeout_secs: float = 300) -> None:
    """Waits until all tasks that run this program have come to the same barrier.

    After `make_strategy` these are the workers; with parameter servers only the chief, which need
    not wait. Before `make_strategy` they are all tasks of the cluster. Without a cluster it returns
    at once. It is not a collective of TensorFlow, so gradients that are still being sent do not
    disturb it.

    Args:
        name: What the tasks wait for, in words; all tasks must give the same name. Each name may be
            used many times.
        timeout_secs: How long to wait.

    Raises:
        TypeError, ValueError: `timeout_secs` is not a positive number.
        TimeoutError: A worker has not come; the message names it. The next call with this name
            waits at the same barrier again.
        ClusterStartError: The same, before `make_strategy`.

    Example:
        ```python
        if kerasdist.is_chief():
            download("data")
        kerasdist.barrier("download")
        ```
    """
    check_positive("timeout_secs", timeout_secs)
    cluster = _cluster(timeout_secs=timeout_secs)
    if cluster.is_local or cluster.task.job == "evaluator":
        return
    number = memory.PROCESS.num_barriers[name] + 1
    key = f"barrier {name!r} number {number}"
    if memory.PROCESS.cluster is None:
        wait_for_peers(
            cluster,
            facts={"barrier": key},
            timeout_secs=timeout_secs,
            longer="barrier(timeout_secs=...)",
        )
    elif cluster.num_ps == 0:
        from kerasdist.lifetime import key_value_store

        key_value_store.wait_for_all(cluster, key, timeout_secs=timeout_secs)
    memory.PROCESS.num_barriers[name] = number


def joined(cluster: Cluster, strategy):
    """Notes the cluster of the strategy that was made; returns the strategy."""
    # A strategy of one task alone leaves the job as it is.
    if memory.PROCESS.cluster is None or not cluster.is_local:
        memory.PROCESS.cluster = cluster
    return strategy


def _cluster(**arguments: Any) -> Cluster:
    return memory.PROCESS.cluster or Cluster.from_env(**arguments)
