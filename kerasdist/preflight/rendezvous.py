"""The rendezvous of the tasks, as leader and followers have it in common.

That is the clock, the port, handshakes, and what is reported meanwhile.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kerasdist.cluster import Cluster
from kerasdist.messages.addresses import is_here, listen
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.contact import Contact
from kerasdist.messages.errors import ClusterStartError, error_of
from kerasdist.messages.shared_key import from_env
from kerasdist.preflight.handshake import Handshake, describe_other_run
from kerasdist.support.background import in_background

PROGRESS_SECS = 10.0
_TICK_SECS = 0.05  # The longest time until a finished call is noticed.
_MAX_NAMED = 5


class Rendezvous:
    """This task among the others, until all are there; a context manager that ends it.

    Args:
        cluster: The tasks, and which one this is.
        facts: What has to be the same on every task.
        timeout_secs: When to give up.
        longer: The call with the argument that waits longer, for the message.
        report: Takes a line of progress.
        clock: Seconds.

    Attributes:
        handshake: What this task says about itself.
        timeout_secs: When to give up.
        name: This task with its address, for messages.
        connections: All that are open.
        contacts: Whom this task calls, by name: the leader calls all, the others call the leader.
        report: Takes a line of progress.
        clock: Seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        facts: Mapping[str, str],
        *,
        timeout_secs: float,
        longer: str,
        report: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ):
        own_address = cluster.addresses[cluster.task]
        self.handshake = Handshake.of(cluster, facts)
        self.timeout_secs = timeout_secs
        self._longer = longer
        self.contacts = {
            str(task): Contact(str(task), address, clock=clock)
            for task, address in cluster.addresses.items()
            if task != cluster.task and cluster.chief in (task, cluster.task)
        }
        self.name = cluster.describe(cluster.task)
        self.report = report
        self.clock = clock
        self._started_at = clock()
        self._next_report_at = PROGRESS_SECS
        self._reported_unresolved: set[str] = set()
        self._is_here = in_background(is_here, own_address)
        self._has_reported_address = False
        key = from_env()
        listener = listen(own_address, name=self.name)
        self.connections = Connections(listener, clock=clock, shared_key=key)

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for contact in self.contacts.values():
            contact.close()
        with self.connections:
            # Ctrl-C need not be polite.
            if kind is None or issubclass(kind, ClusterStartError):
                self.connections.hang_up()

    @property
    def secs(self) -> float:
        """Seconds since this task began to wait."""
        return self.clock() - self._started_at

    def round(self) -> Iterator[tuple[Connection, dict[str, Any]]]:
        """Calls, waits a moment, and yields what tasks of this run have sent.

        Raises:
            ClusterStartError: Another task says that the cluster cannot start.
        """
        for contact in self.contacts.values():
            contact.keep_calling(self.connections, lambda _: self.handshake.to_message())
        for connection, message in self.connections.receive(_TICK_SECS):
            if message["kerasdist"] == "hello":
                self._greet(connection, Handshake.from_message(message))
            if connection.handshake is None:
                self.connections.drop(connection, "something answers there, but it is not a task")
            elif message["kerasdist"] == "stop":
                raise error_of(str(message.get("reason")), is_absence=message.get("is_absence"))
            elif not connection.end:
                yield connection, message

    def _greet(self, connection: Connection, handshake: Handshake | None) -> None:
        if handshake is None:
            return
        if not connection.is_call:
            connection.send(self.handshake.to_message())
        other_run = describe_other_run(self.handshake, handshake)
        if other_run:
            self.connections.drop(connection, other_run)
            return
        connection.introduce(handshake)
        if not connection.is_call and handshake.task in self.contacts:
            self.contacts[handshake.task].call_soon()

    def tell_all(self, kind: str, **content: str | bool) -> None:
        """Sends a message to every task that has said who it is."""
        for connection in self.connections.tasks():
            connection.send({"kerasdist": kind, **content})

    def report_progress(self, missing: Sequence[Contact]) -> None:
        """Says now and then which tasks this one waits for, and tells the others.

        Every 10 seconds, and also for a name that does not resolve: waiting rarely helps there.
        """
        self._report_own_address()
        unresolved = {contact.task for contact in missing if contact.is_unresolved}
        if self.secs < self._next_report_at and unresolved <= self._reported_unresolved:
            return
        self._reported_unresolved |= unresolved
        self._next_report_at = self.secs + PROGRESS_SECS
        names = _list(missing)
        self.report(f"Waiting for {names}, {self.secs:.0f} s of {self.timeout_secs:g} s.")
        self.tell_all("waiting", names=names)

    def _report_own_address(self) -> None:
        if not self._has_reported_address and self.describe_own_address():
            self._has_reported_address = True
            self.report(self.describe_own_address())

    def describe_missing(self, missing: Sequence[Contact]) -> str:
        """Returns why this task gives up: which tasks it waited for, and what to do."""
        lines = [f"\n  {contact.task} ({contact.address}): {contact.status}" for contact in missing]
        return (
            f"The cluster was not complete within {self.timeout_secs:g} s. {self.name} waited for:"
            f"{''.join(lines)}\n"
            "Start what is missing, or read in its log why it ended; check the addresses, and that "
            "the machines reach each other on these ports. "
            f"`{self._longer}` waits longer. "
            f"{self.describe_own_address()}"
        ).rstrip()

    def describe_own_address(self) -> str:
        """Returns what is strange about this task's own address; "" if nothing is."""
        if not self._is_here.done() or self._is_here.exception() or self._is_here.result():
            return ""
        return (
            f"{self.name} is this process, but its address does not belong to this machine. Is "
            "TF_CONFIG left over from another job, or the index that of another task? This is "
            "correct only behind NAT."
        )


def _list(contacts: Sequence[Contact]) -> str:
    names = [str(contact) for contact in contacts[:_MAX_NAMED]]
    if len(contacts) > _MAX_NAMED:
        names.append(f"{len(contacts) - _MAX_NAMED} more")
    return ", ".join(names)
