"""The part of the leader, which calls all others, compares them, and says go or stop."""

from collections.abc import Iterable

from kerasdist.messages.connections import Connection
from kerasdist.messages.contact import Contact
from kerasdist.messages.errors import ClusterStartError, error_of
from kerasdist.preflight.handshake import describe_differences
from kerasdist.preflight.rendezvous import Rendezvous

# After the first difference the others get some seconds, to be part of the verdict and to hear it.
_VERDICT_SECS = 5.0
# A task whose machine has died since it answered must not be counted on.
_HEARD_LATELY_SECS = 5.0


def lead(rendezvous: Rendezvous) -> None:
    """Returns when every task is there and agrees, and has been told so.

    Raises:
        ClusterStartError: A task is missing at the timeout, or does not agree; the tasks that are
            there have been told so.
    """
    try:
        _gather(rendezvous)
    except ClusterStartError as error:
        rendezvous.tell_all("stop", reason=str(error), is_absence=error.is_absence)
        raise
    # Whoever called is not told: that may be a second process that believes to be this task.
    for contact in rendezvous.contacts.values():
        if contact.connection:
            contact.connection.send({"kerasdist": "go"})


def _gather(rendezvous: Rendezvous) -> None:
    differences: dict[str, list[str]] = {}
    decide_at = rendezvous.timeout_secs
    while True:
        for connection, message in rendezvous.round():
            if message["kerasdist"] == "hello":
                differences |= _compare(rendezvous, connection)
        unanswered = [
            contact for contact in rendezvous.contacts.values() if not contact.is_answered
        ]
        missing = unanswered + _unreached(rendezvous)
        if differences:
            decide_at = min(decide_at, rendezvous.secs + _VERDICT_SECS)
        elif not missing and _have_all_been_heard_lately(rendezvous):
            return
        if differences and (not unanswered or rendezvous.secs >= decide_at):
            raise ClusterStartError(_describe_differences(differences.values()))
        if rendezvous.secs >= rendezvous.timeout_secs:
            raise error_of(rendezvous.describe_missing(missing), is_absence=True)
        rendezvous.report_progress(missing)


def _compare(rendezvous: Rendezvous, connection: Connection) -> dict[str, list[str]]:
    theirs = connection.handshake
    assert theirs is not None  # It has just been heard.
    called = [c.task for c in rendezvous.contacts.values() if c.connection is connection]
    expected = called[0] if called else theirs.task
    found = describe_differences(rendezvous.handshake, theirs, expected=expected)
    return {expected: found} if found else {}


def _unreached(rendezvous: Rendezvous) -> list[Contact]:
    # TensorFlow connects both ways.
    callers = {
        c.handshake.task for c in rendezvous.connections.tasks() if c.handshake and not c.is_call
    }
    unreached = [
        contact
        for contact in rendezvous.contacts.values()
        if contact.is_answered and contact.task not in callers
    ]
    for contact in unreached:
        contact.status = f"it answers, but has not reached {rendezvous.name}"
    return unreached


def _have_all_been_heard_lately(rendezvous: Rendezvous) -> bool:
    calls = [contact.connection for contact in rendezvous.contacts.values() if contact.connection]
    long_ago = rendezvous.clock() - _HEARD_LATELY_SECS
    silent = [call for call in calls if call.heard_at < long_ago]
    for call in silent:
        call.expect_answer()
        call.send(rendezvous.handshake.to_message())
    return not silent


def _describe_differences(differences: Iterable[list[str]]) -> str:
    lines = [f"\n  {line}" for found in differences for line in found]
    return f"The tasks of the cluster do not fit together.{''.join(lines)}"
