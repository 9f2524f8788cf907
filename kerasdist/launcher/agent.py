"""An agent: it runs the workers of its machine as the leader of the job says."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kerasdist.launcher import agent_messages
from kerasdist.launcher.agent_messages import Message
from kerasdist.launcher.local_machine import LocalMachine
from kerasdist.launcher.machine import Attempt, Outcome
from kerasdist.messages.connections import Connection, Connections
from kerasdist.messages.heartbeat import Heartbeat
from kerasdist.processes.console import Console
from kerasdist.processes.result import LaunchResult
from kerasdist.support.exit_codes import PEER_FAILED, SIGNALED

_TICK_SECS = 0.05
_TERMINATED = SIGNALED + 15


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of the job, as the leader says it.

    Attributes:
        exit_code: That of the job; None if the leader ended before the job.
        reason: In a line for the user.
    """

    exit_code: int | None
    reason: str


class Agent:
    """Does what the leader says until the job is over, the leader is gone, or it is told to end.

    Args:
        machine: This machine.
        connection: To the leader, which has let this agent in.
        connections: Has the connection.
        console: Shows what the leader says.
    """

    def __init__(
        self,
        machine: LocalMachine,
        connection: Connection,
        connections: Connections,
        *,
        console: Console,
    ):
        self._machine = machine
        self._connection = connection
        self._connections = connections
        self._heartbeat = Heartbeat(connections, clock=time.monotonic)
        self._console = console
        self._attempt: Attempt | None = None  # The one that runs.
        self._last = Outcome(tasks=())
        self._num_restarts = 0
        self._newest_step: int | None = None
        self._end: End | None = None

    def run(self) -> LaunchResult:
        """Returns how the job ended, as far as this agent knows."""
        with self._heartbeat:
            self._connection.send({"kerasdist": "ready"})
            try:
                self._look_until(lambda: self._end is not None)
            except (KeyboardInterrupt, SystemExit):
                self._leave()
                raise
            assert self._end
            if self._attempt:
                self._machine.stop()
                self._look_until(lambda: self._attempt is None)
            self._connections.hang_up()
        return self._result(self._end)

    def _leave(self) -> None:
        """Ends in order: the job goes on without this machine."""
        self._console.say("Stopping this machine's worker. Interrupt again to kill it at once.")
        self._connection.send({"kerasdist": "leaving"})
        self._machine.stop()
        self._look_until(lambda: self._attempt is None)
        self._connections.hang_up()

    def _look_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            for _, message in self._connections.receive(_TICK_SECS):
                self._take(message)
            self._heartbeat.drop_silent()
            if self._connection.end and self._end is None:
                what = self._connection.end.removeprefix("it ")
                self._end = End(exit_code=None, reason=f"The leader {what}.")
            self._look()

    def _look(self) -> None:
        outcome = self._machine.look() if self._attempt else None
        if self._machine.newest_step != self._newest_step:
            self._newest_step = self._machine.newest_step
            self._connection.send({"kerasdist": "step", "step": self._newest_step})
        if self._attempt and outcome:
            self._connection.send(agent_messages.of_end(outcome, self._attempt))
            self._attempt, self._last = None, outcome

    def _take(self, message: Message) -> None:
        try:
            self._do(message)
        except (KeyError, TypeError, ValueError):
            self._connections.drop(self._connection, "it does not speak as a leader does")

    def _do(self, message: Message) -> None:
        match message["kerasdist"]:
            case "say":
                self._console.say(str(message["text"]))
            case "address":
                (address,) = self._machine.addresses(1)
                self._connection.send({"kerasdist": "address", "address": address})
            case "start" if self._attempt is None and self._end is None:
                tasks, addresses, attempt = agent_messages.read_start(message)
                self._attempt, self._num_restarts = attempt, attempt.num_restarts
                self._machine.start(tasks, addresses, attempt)
            case "stop" if self._attempt:
                self._machine.stop(str(message["loss"]))
            case "end":
                code = message["exit_code"]
                self._end = End(
                    exit_code=None if code is None else int(code), reason=str(message["reason"])
                )

    def _result(self, end: End) -> LaunchResult:
        exit_code, reason = end.exit_code, end.reason
        if exit_code is None:
            has_saved = any(each.exit_code == _TERMINATED for each in self._last.tasks)
            exit_code = _TERMINATED if has_saved else PEER_FAILED
            reason += (
                f" This agent ends with {exit_code}: start the job again, as schedulers do "
                "after this code."
            )
            self._console.say(reason)
        return LaunchResult(
            exit_code=exit_code,
            tasks=self._last.tasks,
            root_cause=self._last.root_cause,
            reason=reason,
            num_restarts=self._num_restarts,
        )
