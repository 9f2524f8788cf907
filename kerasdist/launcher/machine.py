"""Where the workers of a launch run, as its leader sees it: this machine, or one far away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kerasdist.cluster import Task
from kerasdist.processes.result import TaskResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of the cluster.

    Attributes:
        num_restarts: How often it was started before.
        mark: A line for the log of every task before this attempt; "" for the first one.
    """

    num_restarts: int
    mark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended on one machine.

    Attributes:
        tasks: How each task ended that was started there. One whose machine is gone has exit code
            137, as if it had been killed.
        root_cause: The task that failed first there; None if none did.
        failure: How it failed, without a full stop: "worker 1 failed with exit code 1".
        error: What its program said at the end, perhaps nothing, if it ended with an error of its
            own (exit code 1), else None; the same text twice means that another attempt is in vain.
        details: Lines for the user about the failure: the error, and where the output is.
        lost: Tasks that failed while the job went on without them, as it does with parameter
            servers.
        unfinished: Tasks that still ran when the leader called `stop`, if that was why they ended.
        has_joined: Whether a task has called `make_strategy`.
    """

    tasks: tuple[TaskResult, ...] = ()
    root_cause: TaskResult | None = None
    failure: str = ""
    error: str | None = None
    details: tuple[str, ...] = ()
    lost: tuple[Task, ...] = ()
    unfinished: tuple[Task, ...] = ()
    has_joined: bool = False


class Machine(Protocol):
    """Starts tasks, and stops them. No method waits: a leader watches several machines at a time.

    Attributes:
        name: What lines for the user call it.
        num_places: How many workers could run on it, if none does now. 0 when it leaves.
        newest_step: That of the newest checkpoint that a task has written there, also in an earlier
            attempt; None without one.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_places(self) -> int: ...

    @property
    def newest_step(self) -> int | None: ...

    def addresses(self, number: int) -> list[str]:
        """Returns so many free addresses for tasks; fewer if the machine is gone meanwhile."""
        ...

    def start(self, tasks: Sequence[Task], addresses: Mapping[Task, str], attempt: Attempt) -> None:
        """Starts tasks.

        Args:
            tasks: Those that run here; at most one attempt runs at a time.
            addresses: Of all tasks of the cluster, on whatever machine.
            attempt: Which attempt it is.
        """
        ...

    def look(self) -> Outcome | None:
        """Returns how the attempt ended; None while a task runs. Called every 50 ms.

        It shows new output, and ends what has to end: a task that fails ends the others of this
        machine, and what `stop` has begun is completed here, some seconds after the grace time at
        the latest. A machine that is gone has an outcome, too.
        """
        ...

    def stop(self, loss: str = "") -> None:
        """Begins the end of the attempt: TERM now, and KILL by `look` after the grace time.

        Args:
            loss: What has become of a task on another machine, in a sentence, if that is why: tasks
                that wait for it are told, and need not find out.
        """
        ...
