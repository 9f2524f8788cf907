"""The part of a task that waits for what the leader says."""

from kerasdist.messages.errors import error_of
from kerasdist.preflight.rendezvous import Rendezvous

# The leader's verdict names everyone, so give it the time to arrive.
_VERDICT_SECS = 5.0


def follow(rendezvous: Rendezvous, *, may_be_late: bool) -> None:
    """Returns when the leader says that every task is there.

    Args:
        rendezvous: This task among the others.
        may_be_late: Whether it may also join a job that runs already.

    Raises:
        ClusterStartError: The leader says that the cluster cannot start, or says nothing.
    """
    [leader] = rendezvous.contacts.values()
    while not _is_late(rendezvous):
        for _, message in rendezvous.round():
            if message["kerasdist"] == "go":
                return
            # It is worth knowing what the leader waits for, unless the way to it is the problem.
            if message["kerasdist"] == "waiting" and leader.is_answered:
                leader.status = f"it waits for {message.get('names')}"
        if may_be_late and leader.runs_tensorflow:
            rendezvous.report(f"{rendezvous.name} joins the job, which runs already.")
            return
        rendezvous.report_progress([leader])
    raise error_of(rendezvous.describe_missing([leader]), is_absence=True)


def _is_late(rendezvous: Rendezvous) -> bool:
    is_led = bool(rendezvous.connections.tasks())
    return rendezvous.secs >= rendezvous.timeout_secs + (_VERDICT_SECS if is_led else 0)
