"""The machines of a job, as its leader gathers them: its own, and those whose agents have come."""

import socket
import time
from collections.abc import Sequence

from kerasdist.launcher.agent_messages import Greeting, Message
from kerasdist.launcher.machine import Machine
from kerasdist.launcher.remote_machine import RemoteMachine
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.heartbeat import Heartbeat
from kerasdist.messages.shared_key import from_env
from kerasdist.processes.console import Console

_ANSWER_SECS = 10.0
_TICK_SECS = 0.05


class Gathering:
    """Listens at the rendezvous; a context manager that lets all agents go.

    Args:
        listener: The open port.
        own: The machine of the leader.
        greeting: What the leader would say as an agent: the others are compared with it.
        run_id: Value of KERASDIST_RUN_ID in every task.
        most_workers: Agents beyond so many wait as spares.
        grace_secs: How long the tasks of a machine may take to end.
        console: That of the leader.
    """

    def __init__(
        self,
        listener: socket.socket,
        own: Machine,
        greeting: Greeting,
        *,
        run_id: str,
        most_workers: int,
        grace_secs: float,
        console: Console,
    ):
        clock = time.monotonic
        self._own, self._greeting, self._run_id = own, greeting, run_id
        self._most_workers, self._console, self._clock = most_workers, console, clock
        self._grace_secs = grace_secs
        self._connections = Connections(listener, clock=clock, shared_key=from_env())
        self._heartbeat = Heartbeat(self._connections, clock=clock)
        self._agents: list[RemoteMachine] = []
        self._answers: dict[Connection, Message] = {}
        self._turned_away: set[tuple[str, str]] = set()

    def __enter__(self) -> "Gathering":
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._heartbeat.__exit__(*error)
        self._connections.__exit__(*error)

    def say(self, text: str) -> None:
        """Writes lines to the console of every agent."""
        self._console.say(text)
        for agent in self._agents:
            agent.send("say", text=text)

    def machines(self) -> Sequence[Machine]:
        """Returns those that are there now; it hears what their agents have said meanwhile."""
        self._receive()
        self._tell_spares()
        return [self._own, *self._agents]

    def let_go(self, exit_code: int | None, reason: str) -> None:
        """Ends all agents.

        Args:
            exit_code: That of the job; None if the leader ends before the job.
            reason: One line for their consoles.
        """
        for agent in self._known():  # Also those that are about to come.
            agent.send("end", exit_code=exit_code, reason=reason)
        self._connections.hang_up()

    def _known(self) -> list[RemoteMachine]:
        handshakes = [each.handshake for each in self._connections.tasks()]
        return [each for each in handshakes if isinstance(each, RemoteMachine)]

    def _receive(self, secs: float = 0.0) -> None:
        for connection, message in self._connections.receive(secs):
            try:
                self._take(connection, message)
            except (KeyError, TypeError, ValueError):
                self._connections.drop(connection, "it does not speak as an agent does")
        self._heartbeat.drop_silent()
        self._name_those_turned_away()
        for agent in [each for each in self._agents if each.is_gone]:
            self._agents.remove(agent)
            if not agent.is_busy and not agent.is_leaving:
                self.say(f"The agent on {agent.name} {agent.end}. It ran no worker.")

    def _take(self, connection: Connection, message: Message) -> None:
        if isinstance(connection.handshake, RemoteMachine):
            if message["kerasdist"] == "address":
                self._answers[connection] = message
            self._take_of_agent(connection.handshake, message)
        elif message["kerasdist"] == "agent":
            self._let_in(connection, Greeting.from_message(message))
        else:
            raise ValueError

    def _take_of_agent(self, agent: RemoteMachine, message: Message) -> None:
        was_leaving = agent.is_leaving
        agent.take(message)
        if agent.is_ready and agent not in self._agents:
            self._agents.append(agent)
            self.say(f"{agent.name} has come to the rendezvous.")
        if agent.is_leaving and not was_leaving and not agent.is_busy:
            self.say(f"{agent.name} leaves; it ran no worker.")

    def _let_in(self, connection: Connection, greeting: Greeting) -> None:
        if difference := greeting.difference(self._greeting):
            connection.introduce(greeting)
            connection.send({"kerasdist": "refused", "reason": difference})
            self._console.say(f"{difference} It was turned away.")
            return
        taken = {self._own.name, *(each.name for each in self._known())}
        is_new = greeting.machine not in taken
        name = greeting.machine if is_new else f"{greeting.machine} (process {greeting.process})"
        agent = RemoteMachine(
            name,
            connection,
            hear=self._receive,
            ask=self._ask,
            drop=self._connections.drop,
            grace_secs=self._grace_secs,
        )
        connection.introduce(agent)
        # Nothing else until it is ready: it would be lost.
        agent.send("welcome", run_id=self._run_id, leader=self._own.name, name=name)

    def _ask(self, connection: Connection, kind: str) -> Message | None:
        self._answers.pop(connection, None)
        connection.send({"kerasdist": kind})
        deadline = self._clock() + _ANSWER_SECS
        while connection not in self._answers and self._clock() < deadline and not connection.end:
            self._receive(_TICK_SECS)
        # All would wait for it again and again.
        if connection not in self._answers:
            self._connections.drop(connection, f"it did not answer within {_ANSWER_SECS:g} s")
        return self._answers.pop(connection, None)

    def _tell_spares(self) -> None:
        """Says to those for which there is no place why they have nothing to do."""
        num_busy = sum(each.is_busy for each in self._agents) + 1  # And the leader's own.
        for agent in self._agents if num_busy >= self._most_workers else ():
            if not agent.is_busy and not agent.is_told:
                agent.is_told = True
                self.say(
                    f"{agent.name} waits as a spare: {self._most_workers} workers run already, "
                    "and it takes the place of the next one that is lost."
                )

    def _name_those_turned_away(self) -> None:
        for host, reason in self._connections.turned_away - self._turned_away:
            self._turned_away.add((host, reason))
            self._console.say(f"A process at {host} was turned away: {reason}.")
