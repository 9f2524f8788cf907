"""The tasks that wait for the leader's word."""

from kerasdist.preflight.errors import ClusterStartError
from kerasdist.preflight.meeting import Meeting

# The leader's verdict names everyone, so give it the time to arrive.
_VERDICT_SECS = 5.0


def follow(meeting: Meeting, *, may_be_late: bool) -> None:
    """Returns when the leader says that every task is there.

    Args:
        meeting: This task among the others.
        may_be_late: Whether it may also join a job that runs already.

    Raises:
        ClusterStartError: The leader says that the cluster cannot start, or says nothing.
    """
    [leader] = meeting.contacts.values()
    while not _is_late(meeting):
        for _, message in meeting.round():
            if message["kerasdist"] == "go":
                return
            # What the leader waits for is worth knowing, unless the way to it is the problem.
            if message["kerasdist"] == "waiting" and leader.is_answered:
                leader.status = f"it waits for {message.get('names')}"
        if may_be_late and leader.runs_tensorflow:
            meeting.report(f"{meeting.name} joins the job, which runs already.")
            return
        meeting.report_progress([leader])
    raise ClusterStartError(meeting.describe_missing([leader]))


def _is_late(meeting: Meeting) -> bool:
    is_led = bool(meeting.connections.tasks())
    return meeting.secs >= meeting.timeout_secs + (_VERDICT_SECS if is_led else 0)
