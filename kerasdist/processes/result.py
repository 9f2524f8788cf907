"""The result of a launch: how it ended."""

from dataclasses import dataclass
from pathlib import Path

from kerasdist.cluster import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """How one task ended.

    Attributes:
        task: Which one.
        exit_code: Its exit code; 128 + s if signal s killed it.
        was_stopped: Whether the launcher ended it, because it was no longer needed.
        log: File with everything that it wrote, stdout and stderr in order.
    """

    task: Task
    exit_code: int
    was_stopped: bool
    log: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """How a launch ended.

    Attributes:
        exit_code: 0 if all is done, else that of the task that failed first; 124 at the timeout,
            138 if too few workers could run.
        tasks: One for each task of the last start, in the order chief, workers, ps, evaluator.
        root_cause: The task that failed first; None if none did.
        reason: How it ended, in one sentence.
        num_restarts: How often the whole cluster was started again, also for more workers.
    """

    exit_code: int
    tasks: tuple[TaskResult, ...]
    root_cause: TaskResult | None
    reason: str
    num_restarts: int
