"""The part of a process in the meeting that calls the one of rank 0."""

from collections.abc import Callable, Mapping
from typing import Any

from kerasdist.cluster.told import TICK_SECS, VERDICT_SECS, Told
from kerasdist.messages.addresses import is_taken_here
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.contact import Contact
from kerasdist.messages.errors import ClusterStartError, error_of
from kerasdist.messages.patience import Patience
from kerasdist.messages.shared_key import from_env

# The process of rank 0 says every 10 s for whom it waits. One whose machine has died does not, and
# may have been started elsewhere, under the same name.
_SILENCE_SECS = 25.0
# A process of an earlier attempt may take as long until it ends.
_STAYS_SECS = 15.0


class Guest:
    """A process that calls the one of rank 0.

    Args:
        told: What it knows.
        patience: How long it waits for the others.
        clock: Seconds.
    """

    def __init__(self, told: Told, patience: Patience, clock: Callable[[], float]):
        self._told, self._patience, self._clock = told, patience, clock
        self._contact = Contact("the process of rank 0", told.address, clock=clock)
        self._answer: list[str] | ClusterStartError | None = None
        self._declined_at: float | None = None
        self._is_answered = False

    def meet(self) -> list[str]:
        """Returns "host:port" of every process, by rank.

        Raises:
            ValueError: The secret is none.
            ClusterStartError: The process of rank 0 says that they do not fit together or have not
                come in time, or it says nothing in time.
        """
        answer = self.ask()
        if isinstance(answer, list):
            return answer
        if answer is not None:
            raise answer
        hint = "" if self._is_answered else self._told.describe_local_address()
        raise error_of(
            f"The process of rank 0 has not let this one, of rank {self._told.rank}, in within "
            f"{self._patience.timeout_secs:g} s. It was called at {self._told.address}: "
            f"{self._contact.status}. Start it, or read in its log why it ended; check the "
            f"address, and that this machine reaches it.{hint}",
            is_absence=True,
        )

    def ask(self) -> list[str] | ClusterStartError | None:
        """Returns where all are, or why they do not meet; None if there was no answer in time."""
        with Connections(None, clock=self._clock, shared_key=from_env()) as connections:
            try:
                while self._answer is None and not self._is_late():
                    self._contact.keep_calling(connections, self._greeting)
                    for connection, message in connections.receive(TICK_SECS):
                        self._hear(connections, connection, message)
                    self._patience.report(str(self._contact))
            finally:
                self._contact.close()
        return self._answer

    def _is_late(self) -> bool:
        more = VERDICT_SECS if self._contact.connection else 0
        return self._patience.secs >= self._patience.timeout_secs + more

    def _hear(
        self, connections: Connections, connection: Connection, message: Mapping[str, Any]
    ) -> None:
        self._is_answered = True
        connection.introduce(self._told.address)
        connection.answer_by = self._clock() + _SILENCE_SECS
        match message:
            case {"kerasdist": "cluster", "found": [*found]}:
                self._answer = [str(address) for address in found]
            case {"kerasdist": "stop", "reason": reason}:
                self._answer = error_of(str(reason), is_absence=message.get("is_absence"))
            case {"kerasdist": "declined", "reason": reason}:
                connections.drop(connection, str(reason))
                self._check_is_first(str(message.get("address", "")))
            case {"kerasdist": "waiting", "names": names}:
                self._contact.status = f"it waits for {names}"
                connection.send(self._greeting(connection))

    def _check_is_first(self, address: str) -> None:
        """Gives up in a second process of this rank on the same machine."""
        if not is_taken_here(address):
            self._declined_at = None
            return
        now = self._patience.secs
        self._declined_at = now if self._declined_at is None else self._declined_at
        if now >= self._declined_at + _STAYS_SECS:
            self._answer = ClusterStartError(
                f"The job runs already, and its process of rank {self._told.rank} is on this "
                f"machine, at {address}. Often that has started this one, which inherits its "
                "variables. Set TF_CONFIG={} for a process that runs by itself, or end the other."
            )

    def _greeting(self, connection: Connection) -> dict[str, Any]:
        connection.answer_by = self._clock() + _SILENCE_SECS
        return self._told.participant(connection.own_host).to_message()
