"""Waits until the cluster is complete."""

from collections.abc import Callable, Mapping

from kerasdist.cluster import Cluster
from kerasdist.preflight.follower import follow
from kerasdist.preflight.leader import lead
from kerasdist.preflight.rendezvous import Rendezvous
from kerasdist.support.checks import check_positive
from kerasdist.support.terminal import say


def wait_for_peers(
    cluster: Cluster,
    *,
    facts: Mapping[str, str],
    timeout_secs: float = 300,
    longer: str = "wait_for_peers(timeout_secs=...)",
    report: Callable[[str], object] = say,
) -> None:
    """Waits until every task of the cluster is there, and checks that they agree.

    Call it on every task right before TensorFlow starts its servers: TensorFlow waits forever for a
    missing task, and reacts to neither Ctrl-C nor TERM meanwhile. The leader (the chief, or worker
    0) calls every other task, the others call the leader, all at the addresses and ports that
    TensorFlow will use, which are free again when this returns. Tasks may start in any order, as
    far apart as the timeout. A worker of a job with parameter servers that comes back later finds
    TensorFlow at the chief's address, and does not wait.

    Args:
        cluster: The tasks, and which one this is. A process alone and an evaluator need not wait.
        facts: What has to be the same on every task, such as versions and the number of clones.
            Without being asked, tasks also tell their KERASDIST_RUN_ID and KERASDIST_RESTART_COUNT:
            one that differs in these is left over from another run. It is not counted, and the one
            that belongs here may still come.
        timeout_secs: How long to wait for the other tasks. Starting machines takes minutes.
        longer: What a user writes to wait longer, for the message at the timeout.
        report: Is called with a line of progress, every 10 seconds.

    Raises:
        TypeError, ValueError: `timeout_secs` is not a positive number.
        ClusterStartError: This task's port is taken; tasks are missing at the timeout; or tasks
            differ in their cluster or facts. The message names tasks, addresses and values, and is
            the same on every task that the leader can reach.

    Example:
        cluster = Cluster.from_env()
        wait_for_peers(cluster, facts={"keras": keras.__version__})
    """
    check_positive("timeout_secs", timeout_secs)
    if cluster.is_local or cluster.task not in cluster.addresses:
        return
    rendezvous = Rendezvous(cluster, facts, timeout_secs=timeout_secs, longer=longer, report=report)
    with rendezvous:
        if cluster.is_chief:
            lead(rendezvous)
        else:
            # A ps that comes back has lost its variables: it waits for a restarted chief.
            is_replaceable = cluster.num_ps > 0 and cluster.task.job == "worker"
            follow(rendezvous, may_be_late=is_replaceable)
