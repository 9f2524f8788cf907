"""The tasks of one attempt: started together, watched, stopped together."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.launcher import guard
from kerasdist.launcher.console import Console
from kerasdist.launcher.result import PEER_FAILED
from kerasdist.launcher.settings import Settings
from kerasdist.launcher.task_log import LogReader
from kerasdist.launcher.task_process import TaskProcess

_POLL_SECS = 0.05
_FROZEN_POLL_SECS = 0.25


class TaskGroup:
    """Runs a program as all tasks of a cluster, until they are done or one fails.

    Args:
        settings: When tasks are stopped.
        run_id: Value of KERASDIST_RUN_ID in every task.
        console: Shows the output.
    """

    def __init__(self, settings: Settings, *, run_id: str, console: Console):
        self._settings = settings
        self._run_id = run_id
        self._console = console
        self._processes: list[TaskProcess] = []
        self._readers: dict[Task, LogReader] = {}
        self._failures: list[TaskProcess] = []  # In order of time.
        self._failed_at = 0.0
        self._frozen_since: dict[Task, float] = {}
        self._frozen_checked = 0.0

    @property
    def processes(self) -> Sequence[TaskProcess]:
        """All that were started."""
        return self._processes

    @property
    def has_failed(self) -> bool:
        """Whether a task failed until now."""
        return bool(self._failures)

    def start(
        self,
        program: Sequence[str],
        *,
        environments: Mapping[Task, Mapping[str, str]],
        logs: Mapping[Task, Path],
        guard_pid: int,
    ) -> None:
        """Starts the program once for each task."""
        for task, environment in environments.items():
            self._readers[task] = LogReader(logs[task])
            process = TaskProcess(
                task,
                program,
                environ={**os.environ, **environment},
                log=logs[task],
                guard_pid=guard_pid,
            )
            self._processes.append(process)

    def wait(self, deadline: float, *, for_all: bool = False) -> bool:
        """Waits until the cluster is done or a task fails.

        Args:
            deadline: Time of `time.monotonic` at which to give up.
            for_all: Whether to wait for the other tasks where one fails.

        Returns:
            Whether this was before the deadline.
        """
        awaited = [process for process in self._processes if self._is_awaited(process)]
        while time.monotonic() < deadline:
            self._kill_long_frozen()
            # Asked before looking: a task that fails in between must not pass for done.
            is_over = not any(process.is_running for process in awaited)
            self._look()
            if is_over or (self._failures and not for_all and self._is_cause_out()):
                return True
            time.sleep(_POLL_SECS)
        return False

    def stop(self) -> None:
        """Ends what still runs: TERM, after the grace time KILL; also what the tasks started."""
        running = [process for process in self._processes if process.is_running]
        for process in running:
            # Where a peer failed, one that is halted is the cause; and it would not hear TERM.
            if self._failures and process.is_frozen:
                process.kill_frozen()
            else:
                process.terminate()
        deadline = time.monotonic() + self._settings.grace_secs
        while any(process.is_running for process in running) and time.monotonic() < deadline:
            self._look()
            time.sleep(_POLL_SECS)
        for process in running:
            process.kill()
        guard.kill_all(self._run_id)
        self._look()
        self._show_remaining_output()

    def root_cause(self) -> TaskProcess | None:
        """Returns the task that failed first; a failed peer is a consequence, if anything else is.

        Call it after `stop`.
        """
        # `min` takes the first of several.
        return min(
            self._failures, key=lambda process: process.exit_code == PEER_FAILED, default=None
        )

    def _is_awaited(self, process: TaskProcess) -> bool:
        # With parameter servers the workers serve the chief: they do not end by themselves.
        is_served = self._settings.num_ps and self._settings.chief
        return process.task.job not in (("ps", "worker") if is_served else ("ps",))

    def _is_cause_out(self) -> bool:
        """Whether a task has failed by itself, or none does within the grace time.

        Peers hear of an error in milliseconds; the process that had it takes seconds to end, and to
        stop it meanwhile would hide its exit code.
        """
        return (
            any(process.exit_code != PEER_FAILED for process in self._failures)
            or any(process.is_running and process.is_frozen for process in self._processes)
            or time.monotonic() > self._failed_at + self._settings.grace_secs
        )

    def _look(self) -> None:
        """Shows new output and notes which tasks failed."""
        new = [
            process
            for process in self._processes
            if process.failed and process not in self._failures
        ]
        if new and not self._failures:
            self._failed_at = time.monotonic()
        # Of those that failed since the last look, the order is not known.
        self._failures += sorted(new, key=lambda process: process.exit_code == PEER_FAILED)
        for task, reader in self._readers.items():
            for line in reader.new_lines():
                self._console.show_line(task, line)
            self._console.show_unfinished_line(task, reader.unfinished_line)

    def _show_remaining_output(self) -> None:
        for task, reader in self._readers.items():
            for line in reader.close():
                self._console.show_line(task, line)
        self._readers = {}

    def _kill_long_frozen(self) -> None:
        now = time.monotonic()
        if now < self._frozen_checked + _FROZEN_POLL_SECS:
            return
        self._frozen_checked = now
        for process in self._processes:
            if not (process.is_running and process.is_frozen):
                self._frozen_since.pop(process.task, None)
            elif now - self._frozen_since.setdefault(process.task, now) > (
                self._settings.frozen_timeout_secs
            ):
                process.kill_frozen()
