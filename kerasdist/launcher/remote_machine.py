"""The machine of an agent, as the leader sees it: the leader's side of a connection."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.launcher import agent_messages
from kerasdist.launcher.agent_messages import Message
from kerasdist.launcher.machine import Attempt, Outcome
from kerasdist.messages.connections import Connection
from kerasdist.processes.result import TaskResult
from kerasdist.support.exit_codes import SIGNALED

_KILLED = SIGNALED + 9
# After the grace time. An agent whose terminal is held (Ctrl-S) is alive, and does nothing.
_MORE_SECS = 15.0


class RemoteMachine:
    """Tells an agent what to start and to stop, and knows what it has said; see `Machine`.

    Args:
        name: What lines for the user call it.
        connection: To its agent.
        hear: Takes what agents have said meanwhile.
        ask: Sends a message on the connection, and returns the answer that comes within some
            seconds; None if the agent is gone or silent.
        drop: Ends the connection, for a reason.
        grace_secs: How long its tasks may take to end.

    Attributes:
        name: What lines for the user call it.
        newest_step: That of the newest checkpoint that a task has written there.
        is_ready: Whether it can start tasks.
        is_leaving: Whether it has said that it ends.
        is_told: Whether it knows why it has nothing to do.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        *,
        hear: Callable[[], None],
        ask: Callable[[Connection, str], Message | None],
        drop: Callable[[Connection, str], object],
        grace_secs: float,
    ):
        self.name = name
        self.newest_step: int | None = None
        self.is_ready = False
        self.is_leaving = False
        self.is_told = False
        self._connection = connection
        self._hear, self._ask, self._drop = hear, ask, drop
        self._stop_secs = grace_secs + _MORE_SECS
        self._stopped_by = math.inf
        self._tasks: Sequence[Task] = ()
        self._num_restarts = -1
        self._outcome: Outcome | None = None

    @property
    def num_places(self) -> int:
        """One, unless it leaves."""
        return 0 if self.is_leaving else 1

    @property
    def end(self) -> str:
        """What the agent did when the connection ended; "" while it is open."""
        return self._connection.end.removeprefix("it ")

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""
        return bool(self.end)

    @property
    def is_busy(self) -> bool:
        """Whether it runs a task."""
        return bool(self._tasks) and self._outcome is None

    def send(self, kind: str, **content: object) -> None:
        """Sends a message to the agent."""
        self._connection.send({"kerasdist": kind, **content})

    def addresses(self, number: int) -> list[str]:
        """Returns an address; none if the agent does not answer at once."""
        assert number == 1, "An agent has one place."
        answer = self._ask(self._connection, "address")
        return [str(answer["address"])] if answer else []

    def start(self, tasks: Sequence[Task], addresses: Mapping[Task, str], attempt: Attempt) -> None:
        """Lets the agent start tasks."""
        self._tasks, self._outcome, self._num_restarts = tasks, None, attempt.num_restarts
        self.is_told = False
        self._stopped_by = math.inf
        self._connection.send(agent_messages.to_start(tasks, addresses, attempt))

    def look(self) -> Outcome | None:
        """Returns how the attempt ended, also if the machine is gone; None while a task runs."""
        self._hear()
        if self.is_busy and time.monotonic() > self._stopped_by:
            self._drop(self._connection, f"it did not stop within {self._stop_secs:g} s")
        if self.is_busy and self.is_gone:
            self._outcome = self._loss()
        return self._outcome

    def stop(self, loss: str = "") -> None:
        """Lets the agent end its tasks."""
        self._stopped_by = min(self._stopped_by, time.monotonic() + self._stop_secs)
        self.send("stop", loss=loss)

    def take(self, message: Message) -> None:
        """Takes what the agent says.

        Raises:
            KeyError, TypeError, ValueError: It is not what an agent would say.
        """
        match message["kerasdist"]:
            case "ended":
                outcome, num_restarts = agent_messages.read_end(message)
                if num_restarts == self._num_restarts:
                    self._outcome = outcome
            case "step":
                self.newest_step = int(message["step"])
            case "ready":
                self.is_ready = True
            case "leaving":
                self.is_leaving = True

    def _loss(self) -> Outcome:
        results = [
            TaskResult(task=task, exit_code=_KILLED, was_stopped=False, log=Path(self.name))
            for task in self._tasks
        ]
        names = ", ".join(map(str, self._tasks))
        return Outcome(
            tasks=tuple(results),
            root_cause=results[0],
            failure=f"{names} was on {self.name}, whose agent {self.end}",
        )
