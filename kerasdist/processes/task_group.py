"""Starts the tasks of one attempt together, watches them, and stops them together.

Nothing here waits: who watches a group looks again and again, and meanwhile at others.
"""

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
        for_all: Whether a failed task leaves the others running until they end by themselves,
            those that serve, too.

    Attributes:
        unfinished: Tasks that still ran when `stop` was called, if that was why they ended.
        has_ended: Whether all has ended.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[Task], TaskProcess],
        *,
        folder: Path,
        console: Console,
        for_all: bool = False,
    ):
        self._settings = settings
        self._start = start
        self._folder = folder
        self._console = console
        self._for_all = for_all
        self._processes: list[TaskProcess] = []
        self._readers: dict[Task, LogReader] = {}
        self._failures: list[TaskProcess] = []  # The earliest is the first.
        self._lost: list[TaskProcess] = []  # Workers without which the job goes on.
        self._num_restarts: dict[Task, int] = {}
        self._failed_at = 0.0
        self._frozen_since: dict[Task, float] = {}
        self._frozen_checked = 0.0
        self._is_done = False  # Whatever becomes of those that serve is no failure.
        self._loss = ""
        self._leave_by: float | None = None
        self._kill_at: float | None = None  # None until all are told to end.
        self.unfinished: Sequence[Task] = ()
        self.has_ended = False

    @property
    def processes(self) -> Sequence[TaskProcess]:
        """All that were started."""
        return self._processes

    @property
    def lost(self) -> Sequence[Task]:
        """Workers that failed and were not started again, while the job went on."""
        return [process.task for process in self._lost if process in self._processes]

    def start(self, logs: Mapping[Task, Path]) -> None:
        """Starts all tasks, and shows what they add to their logs."""
        for task, log in logs.items():
            self._readers[task] = LogReader(log)
            self._processes.append(self._start(task))

    def look(self) -> bool:
        """Shows what is new, and ends what has to end; it never waits for a task.

        Once the cluster is done or a task has failed, those that still run are stopped.

        Returns:
            Whether all has ended, also what the tasks started.
        """
        if self._kill_at is None:
            self._look_while_running()
        elif not self.has_ended:
            self._look()
        if self._kill_at is not None and not self.has_ended:
            is_running = any(process.is_running for process in self._processes)
            if not is_running or time.monotonic() >= self._kill_at:
                self._end()
        return self.has_ended

    def stop(self, loss: str = "") -> None:
        """Begins the end: TERM to what still runs. `look` sends KILL after the grace time.

        Args:
            loss: Tells the tasks, in a sentence, that they have lost a peer on another machine.
        """
        self._loss = loss
        if self._kill_at is None and self._leave_by is None:
            self.unfinished = [each.task for each in self._processes if each.is_running]
        self._begin_end()

    def _begin_end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._settings.grace_secs
        killed = next((each for each in self._failures if each.was_killed), None)
        loss = self._loss or (f"{killed.describe_failure()}." if killed else "")
        for process in (each for each in self._processes if each.is_running):
            # If a peer failed, one that is halted is the cause; and it would not hear TERM.
            if self._failures and process.is_frozen:
                process.kill_frozen()
            else:
                process.terminate()
            # Only now: a task that has failed no longer answers TERM with an end in order.
            if loss:
                process.tell_loss(loss)

    def _look_while_running(self) -> None:
        self._kill_long_frozen()
        # Asked before looking: a task that fails in between must not pass for done.
        is_over = self._is_over()
        self._look()
        if self._failures and not self._for_all and self._is_cause_out():
            self._begin_end()
        elif is_over:
            self._look_at_what_serves()
        else:
            self._replace_lost_workers()

    def _look_at_what_serves(self) -> None:
        """Stops what serves a chief that is done, unless it ends by itself in some seconds."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + min(_LEAVE_SECS, self._settings.grace_secs)
            self._is_done = not self._failures
        is_running = any(process.is_running for process in self._processes)
        if self._failures or not is_running or time.monotonic() >= self._leave_by:
            self._begin_end()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        guard.kill_all(self._folder)
        self._look()
        for task, reader in self._readers.items():
            for line in reader.close():
                self._console.show_line(task, line)
            self._console.show_end(task)
        self._readers = {}
        self.has_ended = True

    def root_cause(self) -> TaskProcess | None:
        """Returns the task that failed first; a failed peer is a consequence, if anything else is.

        Call it when all has ended.
        """
        # `min` takes the first of several.
        failures = [] if self._is_done else self._failures
        return min(failures, key=lambda process: process.exit_code == PEER_FAILED, default=None)

    def _is_over(self) -> bool:
        # With parameter servers, both these and the workers serve the chief.
        serving = ("ps", "worker") if self._settings.num_ps and not self._for_all else ()
        return not any(
            process.is_running for process in self._processes if process.task.job not in serving
        )

    def _replace_lost_workers(self) -> None:
        """Restarts lost workers of a job with parameter servers, or says that they are lost."""
        for position, process in enumerate(self._processes):
            if not self._is_lost(process) or process in self._lost:
                continue
            self._lost.append(process)
            if not self._may_start_again(process):
                hint = "" if self._settings.most_restarts else " --max-restarts starts it again."
                self._console.say(
                    f"{process.describe_failure()}. The job goes on without it.{hint}"
                )
                continue
            count = self._num_restarts.get(process.task, 0) + 1
            self._num_restarts[process.task] = count
            self._console.say(
                f"{process.describe_failure()}. The job goes on, and this worker starts again, "
                f"{count} of {self._settings.most_restarts}."
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
            and self._num_restarts.get(process.task, 0) < self._settings.most_restarts
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
