"""This machine, as a leader sees it: it starts tasks here, each with a log and a note."""

import contextlib
import dataclasses
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.launcher.machine import Attempt, Outcome
from kerasdist.processes import task_log
from kerasdist.processes.console import Console
from kerasdist.processes.guard import ISOLATED, Guard
from kerasdist.processes.result import TaskResult
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import free_addresses, task_environment
from kerasdist.processes.task_group import TaskGroup
from kerasdist.processes.task_log import error_of, exception_of
from kerasdist.processes.task_process import TaskProcess
from kerasdist.support import launch_note
from kerasdist.support.exit_codes import FAILED, SIGNALED
from kerasdist.support.usage_error import UsageError

_LONGEST_ERROR = 300
_NO_INPUT = "A task has no standard input: `input()` finds its end. Use arguments or files instead."
_NO_NETWORK = (
    "In a network of their own, tasks reach each other alone: `--network=host` gives them that of "
    "this machine."
)
_OF_INPUT = re.compile(r"EOFError|bdb\.BdbQuit")
_OF_NETWORK = re.compile(
    "gaierror|URLError|URL fetch failure|Connection ?refused|name resolution|unreachable",
    re.IGNORECASE,
)


class LocalMachine:
    """Runs a program as tasks of a cluster on this machine; see `Machine`.

    Use it in a `with` statement, which keeps other launches out of its logs.

    Args:
        program: The command and its arguments.
        settings: Those of the launch.
        tasks: All that may ever run here; each has a log.
        guard: Has the network; it must outlive this.
        console: Shows the output.
        run_id: Value of KERASDIST_RUN_ID in every task.
        num_places: How many workers can run here at a time.
        name: What lines for the user call it.
        host: Under which the tasks reach each other.
        for_all: Whether a failed task leaves the others running until they end by themselves.

    Attributes:
        log_dir: The folder of the logs.

    Raises:
        UsageError: The folder of the logs cannot be written.
    """

    def __init__(
        self,
        program: Sequence[str],
        settings: Settings,
        tasks: Sequence[Task],
        *,
        guard: Guard,
        console: Console,
        run_id: str,
        num_places: int,
        name: str = "this machine",
        host: str = "127.0.0.1",
        for_all: bool = False,
    ):
        self.num_places = num_places
        self.name = name
        self._host = host
        self.newest_step: int | None = None
        self._program = program
        self._settings = settings
        self._guard = guard
        self._console = console
        self._run_id = run_id
        self._for_all = for_all
        self.log_dir = Path(settings.log_dir or f"kerasdist_logs/{guard.run_id}")
        self._logs, self._log_lock = _make_logs(self.log_dir, tasks, guard.run_id)
        self._notes = {task: guard.folder / f"{log.stem}.note" for task, log in self._logs.items()}
        self._is_isolated = guard.network == ISOLATED
        self._group: TaskGroup | None = None

    def __enter__(self) -> "LocalMachine":
        return self

    def __exit__(self, *_: object) -> None:
        self._log_lock.close()

    def addresses(self, number: int) -> list[str]:
        """Returns so many free addresses; the ports of an earlier attempt may still be held."""
        return free_addresses(number, host=self._host)

    def start(self, tasks: Sequence[Task], addresses: Mapping[Task, str], attempt: Attempt) -> None:
        """Starts tasks; the mark of the attempt stands in all logs, also of those that are away."""
        if attempt.mark:
            for log in self._logs.values():
                with task_log.open_to_append(log) as file:
                    file.write(f"{attempt.mark}\n".encode())

        def start(task: Task) -> TaskProcess:
            return self._start_task(task, addresses, attempt)

        self._group = TaskGroup(
            self._settings,
            start,
            folder=self._guard.folder,
            console=self._console,
            for_all=self._for_all,
        )
        self._group.start({task: self._logs[task] for task in tasks})

    def _start_task(
        self, task: Task, addresses: Mapping[Task, str], attempt: Attempt
    ) -> TaskProcess:
        log, note = self._logs[task], self._notes[task]
        environ = task_environment(
            task,
            addresses,
            self._settings,
            run_id=self._run_id,
            num_restarts=attempt.num_restarts,
            note=note,
            shown_log=log if self._console.shows_bar_of(task) else None,
        )
        return TaskProcess(
            task,
            self._program,
            environ={**os.environ, **environ},
            log=log,
            note=note,
            guard_pid=self._guard.pid if self._is_isolated else 0,
        )

    def look(self) -> Outcome | None:
        """Shows new output; returns how the attempt ended, or None while a task runs."""
        if self._group is None:
            return Outcome()
        has_ended = self._group.look()
        for process in self._group.processes:
            step = launch_note.newest_step(self._notes[process.task])
            self.newest_step = self.newest_step if step is None else step
        return self._outcome(self._group) if has_ended else None

    def stop(self, loss: str = "") -> None:
        """Begins the end of all tasks, if there are any."""
        if self._group:
            self._group.stop(loss)

    def _outcome(self, group: TaskGroup) -> Outcome:
        tasks = tuple(process.result() for process in group.processes)
        outcome = Outcome(
            tasks=tasks,
            lost=tuple(group.lost),
            unfinished=tuple(group.unfinished),
            has_joined=any(launch_note.words_of(self._notes[each.task]) for each in tasks),
        )
        cause = group.root_cause()
        if not cause:
            return outcome
        result = cause.result()
        return dataclasses.replace(
            outcome,
            root_cause=result,
            failure=cause.describe_failure(),
            error=error_of(result.log) if result.exit_code == FAILED else None,
            details=self._details(result),
        )

    def _details(self, cause: TaskResult) -> tuple[str, ...]:
        # A task that a signal or a lost peer ended has said nothing of its own.
        said = _last_words(cause.log) if cause.exit_code < SIGNALED else ""
        lines = [said, self._hint_for(said), f"Full output of {cause.task}: {cause.log}"]
        if task_log.is_full(cause.log.parent):
            lines.append(f"No space left on the disk of {cause.log.parent}: the logs end early.")
        return tuple(line for line in lines if line)

    def _hint_for(self, said: str) -> str:
        if _OF_INPUT.match(said):
            return _NO_INPUT
        return _NO_NETWORK if self._is_isolated and _OF_NETWORK.search(said) else ""


def _last_words(log: Path) -> str:
    text = exception_of(log)
    # The lines above a `sys.exit(3)` say where the program was, and may be no error.
    if not text and (line := error_of(log)):
        text = f"It wrote last: {line}"
    return textwrap.shorten(text, _LONGEST_ERROR)


def _make_logs(
    log_dir: Path, tasks: Sequence[Task], run_id: str
) -> tuple[dict[Task, Path], contextlib.ExitStack]:
    """Returns the logs, and what keeps other launches out of them until it is closed."""
    logs = {task: log_dir / f"{task.job}-{task.index}.log" for task in tasks}
    try:
        lock = task_log.make_all(log_dir, logs.values(), run_id=run_id)
    except OSError as error:
        raise UsageError(
            f"`log_dir` cannot be written. Received: log_dir='{log_dir}' ({error.strerror}). "
            "Name another directory."
        ) from error
    return logs, lock
