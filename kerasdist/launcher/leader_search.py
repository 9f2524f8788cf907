"""An agent's search for its leader: the one that can listen at the rendezvous, on its machine."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kerasdist.launcher.agent_messages import Greeting
from kerasdist.messages.addresses import is_here, listen
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.contact import Contact
from kerasdist.messages.errors import ClusterStartError
from kerasdist.messages.patience import Patience
from kerasdist.support.background import in_background
from kerasdist.support.usage_error import UsageError

_TICK_SECS = 0.05
_LOOK_UP_EVERY_SECS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """What the leader says to an agent that it lets in.

    Attributes:
        connection: To the leader.
        run_id: Value of KERASDIST_RUN_ID in every task.
        leader: The name of its machine.
        name: What the leader calls this machine.
    """

    connection: Connection
    run_id: str
    leader: str
    name: str


class NobodyThereError(RuntimeError):
    """No leader has answered within the limit."""


class LeaderSearch:
    """Finds out whether this agent leads, or who does.

    Args:
        address: "host:port".
        greeting: What this agent says to the leader.
        connections: Where the call is kept.
        timeout_secs: How long to look for the leader.
        say: Shows lines of the launcher itself.
    """

    def __init__(
        self,
        address: str,
        greeting: Greeting,
        connections: Connections,
        *,
        timeout_secs: float,
        say: Callable[[str], None],
    ):
        self._address, self._greeting, self._connections = address, greeting, connections
        self._clock = time.monotonic
        self._contact = Contact("the leader", address, clock=self._clock)
        self._patience = Patience(timeout_secs, report=say, clock=self._clock)
        self._look_up: Future[bool] | None = None
        self._look_up_at = 0.0

    def find(self) -> socket.socket | Welcome:
        """Returns the open port if this agent leads, or the answer of the one that does.

        Raises:
            UsageError: The leader has another secret, version, range or program.
            NobodyThereError: It has not answered in time.
        """
        try:
            while not self._patience.is_over:
                if listener := self._listener():
                    return listener
                if welcome := self._called():
                    return welcome
                self._patience.report(str(self._contact))
        finally:
            self._contact.close()
        raise NobodyThereError(
            f"No agent that leads was found at {self._address} within "
            f"{self._patience.timeout_secs:g} s: {self._contact.status}. The host of --rendezvous "
            "must be a machine where an agent of this job runs, and all must reach its port."
        )

    def _listener(self) -> socket.socket | None:
        """Returns the open port if the address is of this machine, and the port is free."""
        if self._contact.connection is not None:
            return None
        # The name may be known later, and whoever has led may be gone.
        if self._look_up is None:
            if self._clock() >= self._look_up_at:
                self._look_up = in_background(is_here, self._address)
            return None
        if not self._look_up.done():
            return None
        look_up, self._look_up = self._look_up, None
        self._look_up_at = self._clock() + _LOOK_UP_EVERY_SECS
        if look_up.exception() or not look_up.result():
            return None
        try:
            return listen(self._address, name="the rendezvous")
        except ClusterStartError:  # Most often another agent of this machine, which leads.
            return None

    def _called(self) -> Welcome | None:
        if self._look_up_at == 0.0:  # Whether this agent can lead is not known yet.
            time.sleep(_TICK_SECS)
            return None
        self._contact.keep_calling(self._connections, lambda _: self._greeting.to_message())
        if self._contact.is_refused:
            raise UsageError(
                f"The leader at {self._address} and this agent have different secrets: "
                f"{self._contact.status}. Give all agents of a job the same one, or none."
            )
        for connection, message in self._connections.receive(_TICK_SECS):
            match message:
                case {"kerasdist": "welcome", "run_id": run_id, "leader": leader, "name": name}:
                    connection.introduce("the leader")
                    said = {"run_id": str(run_id), "leader": str(leader), "name": str(name)}
                    return Welcome(connection=connection, **said)
                case {"kerasdist": "refused", "reason": reason}:
                    raise UsageError(str(reason))
        return None
