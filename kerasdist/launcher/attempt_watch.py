"""Watches one attempt on all its machines, and merges how it ended there."""

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerasdist.cluster import Task
from kerasdist.launcher.machine import Attempt, Machine, Outcome
from kerasdist.processes.result import TaskResult
from kerasdist.support.exit_codes import FAILED, PEER_FAILED, SIGNALED, USAGE

_TERMINATED, _KILLED = SIGNALED + signal.SIGTERM, SIGNALED + signal.SIGKILL


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """The tasks of an attempt.

    Attributes:
        tasks: All of them, in the order of the result.
        placed: Which machine runs which of them.
        addresses: Those of the cluster; an evaluator has none.
    """

    tasks: Sequence[Task]
    placed: Sequence[tuple[Machine, Sequence[Task]]]
    addresses: Mapping[Task, str]

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return sum(task.job == "worker" for task in self.tasks)


class AttemptWatch:
    """Starts the tasks of an attempt on their machines, and looks at these until all have ended.

    Args:
        crew: The tasks.
        attempt: Which attempt it is.
        grace_secs: How long others may take to end by themselves after one says that a peer failed:
            one of them had the error.
    """

    def __init__(self, crew: Crew, attempt: Attempt, *, grace_secs: float):
        self._crew = crew
        self._attempt = attempt
        self._grace_secs = grace_secs
        self._started: list[Machine] = []
        self._outcomes: dict[int, Outcome] = {}  # In the order in which they came.
        self._failed_at = 0.0
        self._is_stopping = False

    def start(self) -> None:
        """Starts all tasks."""
        for machine, tasks in self._crew.placed:
            self._started.append(machine)
            machine.start(tasks, self._crew.addresses, self._attempt)

    def look(self) -> bool:
        """Looks at every machine once, and stops the others of one where a task has failed.

        Returns:
            Whether all have ended.
        """
        for number, machine in enumerate(self._started):
            if number not in self._outcomes and (outcome := machine.look()):
                self._outcomes[number] = outcome
                if outcome.root_cause and not self._failed_at:
                    self._failed_at = time.monotonic()
        if self._failed_at and not self._is_stopping and self._is_cause_out():
            self.stop(self._describe_loss())
        return len(self._outcomes) == len(self._started)

    @property
    def is_whole(self) -> bool:
        """Whether no machine has ended, and none is told to."""
        return not self._outcomes and not self._is_stopping

    def stop(self, loss: str = "") -> None:
        """Begins the end of what still runs; see `Machine.stop`."""
        self._is_stopping = True
        for number, machine in enumerate(self._started):
            if number not in self._outcomes:
                machine.stop(loss)

    def end(self) -> "AttemptEnd":
        """Returns how it ended on all machines. Call it when all have ended."""
        position = {task: number for number, task in enumerate(self._crew.tasks)}
        outcomes = list(self._outcomes.values())
        tasks = [result for outcome in outcomes for result in outcome.tasks]
        failed = [outcome for outcome in outcomes if outcome.root_cause]
        # `min` takes the first of several.
        cause = min(failed, key=lambda each: _code_of(each) == PEER_FAILED, default=Outcome())
        return AttemptEnd(
            tasks=tuple(sorted(tasks, key=lambda result: position[result.task])),
            cause=cause,
            lost=tuple(task for each in outcomes for task in each.lost),
            unfinished=tuple(task for each in outcomes for task in each.unfinished),
            lost_workers=tuple(
                (result.task, self._started[number])
                for number, outcome in self._outcomes.items()
                for result in outcome.tasks
                if is_lost(result, cause)
            ),
            has_joined=any(each.has_joined for each in outcomes),
        )

    def _describe_loss(self) -> str:
        """Returns in a sentence what the tasks that are left have lost; "" if nothing."""
        for outcome in self._outcomes.values():
            if any(is_lost(result, outcome) for result in outcome.tasks):
                return f"{outcome.failure}."
        return ""

    def _is_cause_out(self) -> bool:
        causes = [outcome for outcome in self._outcomes.values() if outcome.root_cause]
        return (
            any(_code_of(each) != PEER_FAILED for each in causes)
            or time.monotonic() > self._failed_at + self._grace_secs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """How an attempt ended on all machines.

    Attributes:
        tasks: How each task ended, in the order of the result.
        cause: The outcome with the root cause; an empty one if none failed.
        lost: Tasks that failed while the job went on without them.
        unfinished: Tasks that still ran when they were told to end.
        lost_workers: Workers that are gone and have done nothing wrong, and their machines.
        has_joined: Whether a task has called `make_strategy`.
    """

    tasks: tuple[TaskResult, ...] = ()
    cause: Outcome = field(default_factory=Outcome)
    lost: tuple[Task, ...] = ()
    unfinished: tuple[Task, ...] = ()
    lost_workers: tuple[tuple[Task, Machine], ...] = ()
    has_joined: bool = False

    @property
    def exit_code(self) -> int:
        """That of the root cause, 0 without one; a task that ended too early counts as 1."""
        return _code_of(self.cause) if self.cause.root_cause else 0


def is_lost(result: TaskResult, cause: Outcome) -> bool:
    """Whether a worker is gone that has done nothing wrong: a signal killed it, or its machine.

    One that was told to end has saved and ended in order, and so has one that says that a peer
    failed. If the program of another one had an error, TensorFlow may abort those that wait for it;
    but nothing of that kind sends KILL.
    """
    codes_of_others = (PEER_FAILED, _TERMINATED)
    has_error = cause.root_cause is not None and _code_of(cause) in (FAILED, USAGE)
    return (
        result.task.job == "worker"
        and not result.was_stopped
        and result.exit_code > SIGNALED
        and result.exit_code not in codes_of_others
        and (not has_error or result.exit_code == _KILLED)
    )


def _code_of(outcome: Outcome) -> int:
    assert outcome.root_cause
    return outcome.root_cause.exit_code or 1  # It may have ended too early.
