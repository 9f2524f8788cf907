"""Starts the tasks of one attempt together, watches them, and stops them together."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.processes import guard
from kerasdist.processes.console import Console
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_log import LogReader
from kerasdist.processes.task_process import TaskProcess
from kerasdist.support.exit_codes import PEER_FAILED, USAGE

_POLL_SECS = 0.05
_FROZEN_POLL_SECS = 0.25
_NAMED_HALT_SECS = 1.0
_LEAVE_SECS = 5.0  # Tasks that the chief has told to end have so long.
_PROGRAM_ERRORS = (1, USAGE)


class TaskGroup:
    """Runs a program as all tasks of a cluster, until they are done or one fails.

    Args:
        settings: When tasks are stopped.
        start: Starts a task, also anew; returns its process.
        folder: Value of KERASDIST_LAUNCH_FOLDER in every task, and in what these start.
        console: Shows the output.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[Task], TaskProcess],
        *,
        folder: Path,
        console: Console,
    ):
        self._settings = settings
        self._start = start
        self._folder = folder
        self._console = console
        self._processes: list[TaskProcess] = []
        self._readers: dict[Task, LogReader] = {}
        self._failures: list[TaskProcess] = []  # The earliest is the first.
        self._lost: list[TaskProcess] = []  # Workers without which the job goes on.
        self._num_restarts: dict[Task, int] = {}
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

    @property
    def lost(self) -> Sequence[Task]:
        """Workers that failed and were not started again, while the job went on."""
        return [process.task for process in self._lost if process in self._processes]

    def start(self, logs: Mapping[Task, Path]) -> None:
        """Starts all tasks, and shows what they add to their logs."""
        for task, log in logs.items():
            self._readers[task] = LogReader(log)
            self._processes.append(self._start(task))

    def wait(self, deadline: float, *, for_all: bool = False) -> bool:
        """Waits until the cluster is done or a task fails.

        Args:
            deadline: Time of `time.monotonic` at which to give up.
            for_all: Whether to wait for the other tasks if one fails, and for those that serve.

        Returns:
            Whether this was before the deadline.
        """
        while time.monotonic() < deadline:
            self._kill_long_frozen()
            # Asked before looking: a task that fails in between must not pass for done.
            is_over = self._is_over(for_all=for_all)
            self._look()
            if is_over or (self._failures and not for_all and self._is_cause_out()):
                return True
            self._replace_lost_workers()
            time.sleep(_POLL_SECS)
        return False

    def stop(self) -> None:
        """Ends what still runs: TERM, after the grace time KILL; also what the tasks started."""
        if self._is_over() and not self._failures:
            # What serves hears from the chief, and ends by itself.
            self._look_until_ended(self._processes, min(_LEAVE_SECS, self._settings.grace_secs))
        running = [process for process in self._processes if process.is_running]
        for process in running:
            # If a peer failed, one that is halted is the cause; and it would not hear TERM.
            if self._failures and process.is_frozen:
                process.kill_frozen()
            else:
                process.terminate()
        self._look_until_ended(running, self._settings.grace_secs)
        for process in running:
            process.kill()
        guard.kill_all(self._folder)
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

    def _is_over(self, *, for_all: bool = False) -> bool:
        # With parameter servers, both these and the workers serve the chief.
        serving = ("ps", "worker") if self._settings.num_ps and not for_all else ()
        return not any(
            process.is_running for process in self._processes if process.task.job not in serving
        )

    def _look_until_ended(self, processes: Sequence[TaskProcess], secs: float) -> None:
        deadline = time.monotonic() + secs
        while any(process.is_running for process in processes) and time.monotonic() < deadline:
            self._look()
            time.sleep(_POLL_SECS)

    def _replace_lost_workers(self) -> None:
        """Restarts lost workers of a job with parameter servers, or says that they are lost."""
        for position, process in enumerate(self._processes):
            if not self._is_lost(process) or process in self._lost:
                continue
            self._lost.append(process)
            if not self._may_start_again(process):
                hint = "" if self._settings.max_restarts else " --max-restarts starts it again."
                self._console.say(
                    f"{process.describe_failure()}. The job goes on without it.{hint}"
                )
                continue
            count = self._num_restarts.get(process.task, 0) + 1
            self._num_restarts[process.task] = count
            self._console.say(
                f"{process.describe_failure()}. The job goes on, and this worker starts again, "
                f"{count} of {self._settings.max_restarts}."
            )
            self._processes[position] = self._start(process.task)

    def _is_lost(self, process: TaskProcess) -> bool:
        """Whether a worker has failed, and the job goes on nevertheless.

        This is so with parameter servers, while any worker is left. Not if it says that a peer
        failed, which is then the cause, or if the program fails before it first serves: the chief
        would wait for it in vain.
        """
        is_restarted = process.task in self._num_restarts
        return (
            self._settings.num_ps > 0
            and process.task.job == "worker"
            and process.failed
            and process.exit_code not in (0, PEER_FAILED)
            and (is_restarted or process.exit_code not in _PROGRAM_ERRORS)
            and any(self._has_future(other) for other in self._processes)
        )

    def _has_future(self, process: TaskProcess) -> bool:
        is_worker = process.task.job == "worker"
        # One that has ended without an error has heard that the job is over.
        return is_worker and (not process.failed or self._may_start_again(process))

    def _may_start_again(self, process: TaskProcess) -> bool:
        return (
            process.failed
            and process.exit_code not in (USAGE, PEER_FAILED)
            and self._num_restarts.get(process.task, 0) < self._settings.max_restarts
        )

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
        self._find_absent()
        new = [
            process
            for process in self._processes
            if process.failed and process not in self._failures and not self._is_lost(process)
        ]
        if new and not self._failures:
            self._failed_at = time.monotonic()
        # Nobody knows the order of those that failed since the last look.
        self._failures += sorted(
            new, key=lambda each: (each.exit_code == PEER_FAILED, each not in self._lost)
        )
        for task, reader in self._readers.items():
            for line in reader.new_lines():
                self._console.show_line(task, line)
            self._console.show_unfinished_line(task, reader.unfinished_line)

    def _find_absent(self) -> None:
        """Notes which tasks have ended without an error while others still wait for them."""
        waiting = [each.task for each in self._processes if each.is_running and each.is_waiting]
        for process in self._processes if waiting else ():
            is_member = process.task.job != "evaluator"
            if is_member and process.exit_code == 0 and not process.is_waiting:
                process.note_missed_by(waiting[0])

    def _show_remaining_output(self) -> None:
        for task, reader in self._readers.items():
            for line in reader.close():
                self._console.show_line(task, line)
            self._console.show_end(task)
        self._readers = {}

    def _kill_long_frozen(self) -> None:
        now = time.monotonic()
        if now < self._frozen_checked + _FROZEN_POLL_SECS:
            return
        self._frozen_checked = now
        for process in self._processes:
            if not (process.is_running and process.is_frozen):
                self._say_halt(process, now - self._frozen_since.pop(process.task, now))
            elif now - self._frozen_since.setdefault(process.task, now) > (
                self._settings.frozen_timeout_secs
            ):
                process.kill_frozen()

    def _say_halt(self, process: TaskProcess, secs: float) -> None:
        """Names a task that was halted and goes on: others have waited for it."""
        if process.is_running and secs >= _NAMED_HALT_SECS:
            self._console.say(f"{process.task} was halted (SIGSTOP) for {secs:.0f} s, and goes on.")
