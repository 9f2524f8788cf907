"""The part of the process of rank 0 in the meeting: the others call it.

It goes on listening for as long as its process lives. So one that calls too late hears that the job
runs already, and a worker of parameter servers that was started again gets its cluster again.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from kerasdist.cluster.meeting_guest import Guest
from kerasdist.cluster.participant import Participant, describe_other_run
from kerasdist.cluster.told import TICK_SECS, VERDICT_SECS, Told
from kerasdist.messages.address import bracketed, is_loopback, split_address
from kerasdist.messages.addresses import is_here, listen
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.errors import ClusterStartError, error_of
from kerasdist.messages.patience import Patience
from kerasdist.messages.shared_key import from_env
from kerasdist.support import environment
from kerasdist.support.background import in_background
from kerasdist.support.terminal import say

_MOST_NAMED = 8
# A process whose machine has died since it came must not be counted on.
_HEARD_LATELY_SECS = 5.0
_LATER_TICK_SECS = 1.0


class Host:
    """The process of rank 0, which the others call.

    Args:
        told: What it knows.
        patience: How long it waits for the others.
        clock: Seconds.
    """

    def __init__(self, told: Told, patience: Patience, clock: Callable[[], float]):
        self._told, self._patience, self._clock = told, patience, clock
        self._own = told.participant(split_address(told.address)[0])
        self._present: dict[int, tuple[Connection | None, Participant]] = {0: (None, self._own)}
        self._problems: dict[str, None] = {}
        self._is_here = in_background(is_here, told.address)

    def meet(self) -> list[str]:
        """Returns "host:port" of every process, by rank.

        Raises:
            ValueError: The secret is none.
            ClusterStartError: They have not come in time, or do not fit together, or the port is
                taken. All that are here hear it.
        """
        key, listener = from_env(), self._listen()
        connections = Connections(listener, clock=self._clock, shared_key=key)
        try:
            self._gather(connections)
        except BaseException as error:
            with connections:
                if isinstance(error, ClusterStartError):  # Ctrl-C need not be polite.
                    said = {"reason": str(error), "is_absence": error.is_absence}
                    self._tell_all(connections, "stop", **said)
                    connections.hang_up()
            raise
        found = self._found()
        self._tell_all(connections, "cluster", found=found)
        # A process that was forked would keep the port of one that has ended.
        os.register_at_fork(after_in_child=listener.close)
        in_background(_attend, connections, self._own, found)
        return found

    def _listen(self) -> socket.socket:
        address = self._told.address
        try:
            return listen(address, name=f"the process of rank 0 ({address})")
        except ClusterStartError:
            # Another one of rank 0 may be there, which gathers: then all are to hear of this one.
            patience = Patience(
                min(self._patience.timeout_secs, VERDICT_SECS), report=say, clock=self._clock
            )
            verdict = Guest(self._told, patience, clock=self._clock).ask()
            if isinstance(verdict, ClusterStartError):
                raise verdict from None
            raise

    def _gather(self, connections: Connections) -> None:
        decide_at = self._patience.timeout_secs
        while True:
            for connection, message in connections.receive(TICK_SECS):
                self._take(connections, connection, message)
            ranks = range(self._told.num_processes)
            missing = [each for each in ranks if not self._is_present(each)] or self._silent()
            if self._problems:
                decide_at = min(decide_at, self._patience.secs + VERDICT_SECS)
            elif not missing:
                return
            if self._problems and (not missing or self._patience.secs >= decide_at):
                raise ClusterStartError(self._describe_problems())
            if self._patience.is_over:
                raise error_of(self._describe_missing(missing, connections), is_absence=True)
            if self._patience.report(_names(missing)):
                for connection in connections.tasks():
                    _ask(connection, _names(missing))

    def _is_present(self, rank: int) -> bool:
        connection, _ = self._present.get(rank, (None, None))
        return rank == 0 or (connection is not None and not connection.end)

    def _silent(self) -> list[int]:
        """Returns the ranks of which nothing was heard lately, and asks them."""
        silent = []
        for rank, (connection, _) in self._present.items():
            if connection and not self._is_heard_lately(connection):
                _ask(connection, "nobody, and makes sure that all are still there")
                silent.append(rank)
        return silent

    def _is_heard_lately(self, connection: Connection) -> bool:
        return connection.heard_at > self._clock() - _HEARD_LATELY_SECS

    def _take(self, connections: Connections, connection: Connection, message: Mapping) -> None:
        theirs = Participant.from_message(message)
        if theirs is None:
            connections.drop(connection, "it does not speak as one of these processes")
            return
        reason = describe_other_run(self._own.run, theirs.run) or self._doubt(theirs)
        if reason:
            _decline(connection, reason)
            return
        is_new = connection.handshake is None
        connection.introduce(theirs)
        problem = self._problem_of(theirs)
        if problem:
            self._problems[problem] = None
        if not problem or theirs.rank not in self._present:
            self._present[theirs.rank] = connection, theirs
        if is_new:
            connection.send({"kerasdist": "waiting", "names": "the others"})

    def _doubt(self, theirs: Participant) -> str:
        """Returns why a process has to call again: another one of its rank may be gone."""
        connection, other = self._present.get(theirs.rank, (None, theirs))
        is_other = connection and not connection.end and other.address != theirs.address
        if not (connection and is_other) or self._is_heard_lately(connection):
            return ""
        _ask(connection, "nobody, and asks whether this process is still there")
        return f"it asks whether the process at {other.address}, of the same rank, is still there"

    def _problem_of(self, theirs: Participant) -> str:
        name = f"the process at {theirs.address}"
        for told in ("num_processes", "num_ps"):
            here, there = getattr(self._own, told), getattr(theirs, told)
            if here != there:
                return (
                    f"{name}, of rank {theirs.rank}, was told {told}={there}, and that of rank 0 "
                    f"{told}={here}."
                )
        if not 0 <= theirs.rank < self._told.num_processes:
            return f"{name} has rank {theirs.rank}, of {self._told.num_processes} processes."
        if theirs.rank == 0 or self._is_present(theirs.rank):
            _, other = self._present[theirs.rank]
            if other.address != theirs.address:
                return f"{name} and that at {other.address} both have rank {theirs.rank}."
        return ""

    def _describe_problems(self) -> str:
        problems = " And ".join(self._problems)
        return f"The processes that meet at {self._told.address} do not fit together: {problems}"

    def _describe_missing(self, missing: list[int], connections: Connections) -> str:
        told, secs = self._told, f"{self._patience.timeout_secs:g} s"
        refused = [f"from {host}: {why}" for host, why in sorted(connections.turned_away)]
        return (
            f"Only {told.num_processes - len(missing)} of {told.num_processes} processes have "
            f"come to {told.address} within {secs}. Missing: {_names(missing)}. "
            "Start them, or read in their logs why they ended; check that their machines reach "
            f"this address.{self._describe_own_address()}"
            f"{' Calls that were turned down: ' if refused else ''}{'; '.join(refused)}"
        )

    def _describe_own_address(self) -> str:
        local = self._told.describe_local_address()
        is_known = self._is_here.done() and self._is_here.exception() is None
        if local or not is_known or self._is_here.result():
            return local
        return (
            " It does not belong to the machine of this process, which was told rank 0: that is "
            "correct only behind NAT or a service."
        )

    def _found(self) -> list[str]:
        guests = [self._present[rank][1] for rank in range(1, self._told.num_processes)]
        # The others know the host of this process; it may know itself by no name at all.
        from_afar = [each for each in guests if not is_loopback(_host_of(each.address))]
        called = bracketed((from_afar or guests)[0].called)
        host = _host_of(self._own.address) if os.environ.get(environment.HOST) else called
        return [f"{host}:{self._told.port}", *(_place(each, host) for each in guests)]

    def _tell_all(self, connections: Connections, kind: str, **content: Any) -> None:
        for connection in connections.tasks():
            connection.send({"kerasdist": kind, **content})


def _attend(connections: Connections, own: Participant, found: list[str]) -> None:
    """Answers those who call later, for as long as this process lives."""
    while True:
        for connection, message in connections.receive(_LATER_TICK_SECS):
            theirs = Participant.from_message(message)
            if theirs is None:
                connections.drop(connection, "it does not speak as one of these processes")
            else:
                _answer_later(connection, own, theirs, found)


def _answer_later(
    connection: Connection, own: Participant, theirs: Participant, found: list[str]
) -> None:
    other_run = describe_other_run(own.run, theirs.run)
    known = found[theirs.rank] if 0 < theirs.rank < len(found) else ""
    is_replaceable = own.num_ps > 0 and theirs.rank < len(found) - own.num_ps
    if other_run or theirs.num_processes != len(found):
        _decline(connection, other_run or f"a job of {len(found)} processes runs there already")
    elif is_replaceable and known == _place(theirs, _host_of(found[0])):
        connection.introduce(theirs)
        connection.send({"kerasdist": "cluster", "found": found})
    else:
        reason = "the job runs there already and takes nobody else in"
        _decline(connection, reason, address=known)


def _decline(connection: Connection, reason: str, **content: str) -> None:
    """Tells a process that it is not let in, which then hangs up."""
    connection.expect_answer()
    connection.send({"kerasdist": "declined", "reason": reason, **content})


def _ask(connection: Connection, names: str) -> None:
    """Has a process say again that it is there; one that does not is not counted on."""
    if connection.answer_by is None:
        connection.expect_answer()
        connection.send({"kerasdist": "waiting", "names": names})


def _place(guest: Participant, host: str) -> str:
    """Returns where all reach a guest: over the loopback comes who shares the machine of rank 0."""
    host = host if is_loopback(_host_of(guest.address)) else _host_of(guest.address)
    return f"{host}:{guest.address.rpartition(':')[2]}"


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _names(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"
