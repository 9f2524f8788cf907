"""The meeting of processes that know one address: each tells its own, and gets those of all.

The process of rank 0 listens at that address. The others call it, and say their rank, how many
processes there are, and where TensorFlow is to reach them.
"""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from kerasdist.messages.address import bracketed, split_address
from kerasdist.messages.addresses import listen, own_host
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.contact import Contact
from kerasdist.messages.errors import ClusterStartError
from kerasdist.messages.patience import Patience
from kerasdist.messages.shared_key import from_env
from kerasdist.support import environment
from kerasdist.support.terminal import say

_TICK_SECS = 0.05
# The verdict names everyone, so the others get the time to be part of it, and to hear it.
_VERDICT_SECS = 5.0
_MOST_NAMED = 8
# Below 32768, where Linux begins to hand out ports to outgoing connections.
_FIRST_PORT, _NUM_PORTS = 12_000, 20_000
# If these differ, a process belongs to another run.
_FACTS_OF_THE_RUN = (environment.RUN_ID, environment.RESTART_COUNT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Participant:
    """What a process says when it comes to the meeting.

    Attributes:
        rank: Which of the processes it is, from 0.
        num_processes: How many there are, as it was told.
        job: Its part: "chief", "worker" or "ps".
        address: "host:port" where TensorFlow is to reach it.
        called: The host that it has called, under which rank 0 is known.
        run: What tells its run from others.
    """

    rank: int
    num_processes: int
    job: str
    address: str
    called: str
    run: Mapping[str, str]

    def to_message(self) -> dict[str, Any]:
        """Returns the message that `from_message` reads."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"kerasdist": "join", **content, "run": dict(self.run)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Participant | None":
        """Returns what a process says, or None if it is not what one would say."""
        content: dict[str, Any] = {name: message.get(name) for name in cls.__dataclass_fields__}
        texts = dict.fromkeys(("job", "address", "called"), str)
        kinds = {"rank": int, "num_processes": int, "run": dict, **texts}
        if any(not isinstance(content[name], kind) for name, kind in kinds.items()):
            return None
        return cls(**content)


def meet(
    address: str,
    *,
    rank: int,
    num_processes: int,
    job: str,
    timeout_secs: float,
    report: Callable[[str], object] = say,
    clock: Callable[[], float] = time.monotonic,
) -> list[tuple[str, str]]:
    """Returns the job and "host:port" of every process, by rank, once all have come.

    Args:
        address: "host:port" at which the process of rank 0 listens.
        rank: Which of the processes this one is, from 0.
        num_processes: How many there are.
        job: What this one is to be: "chief", "worker" or "ps".
        timeout_secs: How long to wait for the others.
        report: Takes a line of progress, every 10 seconds.
        clock: Seconds.

    Raises:
        ClusterStartError: A process has not come in time; two have the same rank, or were told
            another number; the port of rank 0 is taken. All that have come hear the same message.
    """
    kind = _Host if rank == 0 else _Guest
    with _held_port(address, rank) as port:
        told = {"address": address, "rank": rank, "num_processes": num_processes, "job": job}
        return kind(told, port, timeout_secs, report, clock).meet()


class _Meeting:
    def __init__(
        self,
        told: Mapping[str, Any],
        port: int,
        timeout_secs: float,
        report: Callable[[str], object],
        clock: Callable[[], float],
    ):
        self._address, self._rank, self._job = told["address"], told["rank"], told["job"]
        self._num_processes = told["num_processes"]
        self._port, self._clock = port, clock
        self._patience = Patience(timeout_secs, report=report, clock=clock)

    def _participant(self, host: str) -> Participant:
        run = {name: os.environ[name] for name in _FACTS_OF_THE_RUN if name in os.environ}
        return Participant(
            rank=self._rank,
            num_processes=self._num_processes,
            job=self._job,
            address=f"{own_host(host)}:{self._port}",
            called=split_address(self._address)[0],
            run=run,
        )


class _Host(_Meeting):
    """The process of rank 0, which the others call."""

    def meet(self) -> list[tuple[str, str]]:
        own = self._participant(split_address(self._address)[0])
        self._present: dict[int, tuple[Connection | None, Participant]] = {0: (None, own)}
        self._problems: dict[str, None] = {}
        listener = listen(self._address, name=f"the process of rank 0 ({self._address})")
        with Connections(listener, clock=self._clock, shared_key=from_env()) as connections:
            try:
                self._gather(connections)
            except ClusterStartError as error:
                self._tell_all(connections, "stop", reason=str(error))
                connections.hang_up()
                raise
            found = self._found()
            self._tell_all(connections, "cluster", found=found)
            connections.hang_up()
        return found

    def _gather(self, connections: Connections) -> None:
        decide_at = self._patience.timeout_secs
        while True:
            for connection, message in connections.receive(_TICK_SECS):
                self._take(connections, connection, message)
            missing = [rank for rank in range(self._num_processes) if not self._is_present(rank)]
            if self._problems:
                decide_at = min(decide_at, self._patience.secs + _VERDICT_SECS)
            elif not missing:
                return
            if self._problems and (not missing or self._patience.secs >= decide_at):
                raise ClusterStartError(self._describe_problems())
            if self._patience.is_over:
                raise ClusterStartError(self._describe_missing(missing))
            if self._patience.report(_names(missing)):
                self._tell_all(connections, "waiting", names=_names(missing))

    def _is_present(self, rank: int) -> bool:
        connection, _ = self._present.get(rank, (None, None))
        return rank == 0 or (connection is not None and not connection.end)

    def _take(self, connections: Connections, connection: Connection, message: Mapping) -> None:
        theirs = Participant.from_message(message)
        _, mine = self._present[0]
        if theirs is None or theirs.run != mine.run:
            connections.drop(connection, "it does not belong to this run")
            return
        connection.introduce(theirs)
        problem = self._problem_of(theirs)
        if problem:
            self._problems[problem] = None
        if not problem or theirs.rank not in self._present:
            self._present[theirs.rank] = connection, theirs

    def _problem_of(self, theirs: Participant) -> str:
        name = f"the process at {theirs.address}"
        if theirs.num_processes != self._num_processes:
            return (
                f"{name}, of rank {theirs.rank}, was told num_processes={theirs.num_processes}, "
                f"and that of rank 0 num_processes={self._num_processes}."
            )
        if not 0 <= theirs.rank < self._num_processes:
            return f"{name} has rank {theirs.rank}, of {self._num_processes} processes."
        if theirs.rank == 0 or self._is_present(theirs.rank):
            _, other = self._present[theirs.rank]
            if other.address != theirs.address:
                return f"{name} and that at {other.address} both have rank {theirs.rank}."
        return ""

    def _describe_problems(self) -> str:
        lines = "".join(f"\n  {problem[0].upper()}{problem[1:]}" for problem in self._problems)
        return f"The processes that meet at {self._address} do not fit together.{lines}"

    def _describe_missing(self, missing: list[int]) -> str:
        return (
            f"Only {self._num_processes - len(missing)} of {self._num_processes} processes have "
            f"come to {self._address} within {self._patience.timeout_secs:g} s. Missing: "
            f"{_names(missing)}. Start them, or read in their logs why they ended; check that "
            "their machines reach this address."
        )

    def _found(self) -> list[tuple[str, str]]:
        guests = [self._present[rank][1] for rank in range(1, self._num_processes)]
        _, own = self._present[0]
        # The others know the host of this process; it may know itself by no name at all.
        host = own.address.rpartition(":")[0]
        if environment.HOST not in os.environ:
            host = bracketed(guests[0].called)
        return [(own.job, f"{host}:{self._port}"), *((each.job, each.address) for each in guests)]

    def _tell_all(self, connections: Connections, kind: str, **content: Any) -> None:
        for connection in connections.tasks():
            connection.send({"kerasdist": kind, **content})


class _Guest(_Meeting):
    """A process that calls the one of rank 0."""

    def meet(self) -> list[tuple[str, str]]:
        contact = Contact("the process of rank 0", self._address, clock=self._clock)
        with Connections(None, clock=self._clock, shared_key=from_env()) as connections:
            try:
                return self._ask(contact, connections)
            finally:
                contact.close()

    def _ask(self, contact: Contact, connections: Connections) -> list[tuple[str, str]]:
        while self._patience.secs < self._patience.timeout_secs + (
            _VERDICT_SECS if contact.connection else 0
        ):
            contact.keep_calling(connections, self._greeting)
            for _, message in connections.receive(_TICK_SECS):
                match message:
                    case {"kerasdist": "cluster", "found": [*found]}:
                        return [(str(job), str(address)) for job, address in found]
                    case {"kerasdist": "stop", "reason": reason}:
                        raise ClusterStartError(str(reason))
                    case {"kerasdist": "waiting", "names": names}:
                        contact.status = f"it waits for {names}"
            self._patience.report(str(contact))
        raise ClusterStartError(
            f"The process of rank 0 has not let this one, of rank {self._rank}, in within "
            f"{self._patience.timeout_secs:g} s. It was called at {self._address}: "
            f"{contact.status}. Start it, or read in its log why it ended; check the address, and "
            "that this machine reaches it."
        )

    def _greeting(self, connection: Connection) -> dict[str, Any]:
        connection.answer_by = None  # The answer comes when all are there.
        return self._participant(connection.own_host).to_message()


@contextlib.contextmanager
def _held_port(address: str, rank: int) -> Generator[int]:
    """Holds the port at which TensorFlow will listen, so that no other process of the job takes it.

    KERASDIST_PORT names it; else it is the first free one from a number that depends on the job.
    """
    given = os.environ.get(environment.PORT, "")
    if given:
        candidates = [_checked_port(given)]
    else:
        first = zlib.crc32(address.encode()) + rank
        candidates = [_FIRST_PORT + (first + offset) % _NUM_PORTS for offset in range(_NUM_PORTS)]
    listener, port = None, 0
    for port in candidates:
        with contextlib.suppress(ClusterStartError):
            listener = listen(f"localhost:{port}", name="this process")
            break
    if listener is None:
        raise ClusterStartError(
            f"Port {given or 'of this process'} is already in use on this machine. Give another "
            f"one in {environment.PORT}."
        )
    with listener:
        yield port


def _checked_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise ValueError(
            f"{environment.PORT} must be a number from 1 to 65535. Received: {text!r}."
        )
    return int(text)


def _names(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"
