"""One process of the cluster, from its start to its exit code."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kerasdist.cluster import Task
from kerasdist.processes import task_entry, task_log
from kerasdist.processes.guard import KILL_SECS
from kerasdist.processes.result import TaskResult
from kerasdist.support import launch_note
from kerasdist.support.exit_codes import FAILED, PEER_FAILED, SIGNALED

_TERMINATED, _KILLED = SIGNALED + signal.SIGTERM, SIGNALED + signal.SIGKILL


class TaskProcess:
    """Starts a task in a session of its own, with its output going to a file.

    Args:
        task: Which task it is.
        program: The command and its arguments.
        environ: All variables of the process.
        log: File that stdout and stderr are appended to, in order.
        note: File in which it leaves what the launcher should know; an old one is removed.
        guard_pid: Process whose network the task joins, or 0.

    Attributes:
        task: Which task it is.
        log: File with its output.
    """

    def __init__(
        self,
        task: Task,
        program: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: Path,
        note: Path,
        guard_pid: int,
    ):
        self.task = task
        self.log = log
        self._note = note
        self._missed_by: Task | None = None
        self._was_told_to_end = False
        self._was_killed_here = self._was_frozen = False
        self._has_waited = False
        entry = [sys.executable, "-I", "-S", task_entry.__file__, str(os.getpid()), str(guard_pid)]
        launch_note.remove(note)
        with task_log.open_to_append(log) as output:
            self._process = subprocess.Popen(
                [*entry, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,  # A process group, so that signals reach its children.
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, 128 + s if signal s killed it; None while it runs."""
        code = self._process.poll()
        return SIGNALED - code if code is not None and code < 0 else code

    @property
    def is_running(self) -> bool:
        """Whether the task has not ended."""
        return self.exit_code is None

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because the launcher said so."""
        return (
            self._was_told_to_end
            and (self.exit_code == 0 or self._was_ended_here)
            and not self._has_failed_slowly
        )

    @property
    def _has_failed_slowly(self) -> bool:
        """Whether it was stopped while it was still ending because of an error of its own."""
        is_stopped = self._was_told_to_end and self._was_ended_here
        return is_stopped and launch_note.FAILED in launch_note.words_of(self._note)

    @property
    def _was_ended_here(self) -> bool:
        """Whether a signal of the launcher ended it; others, such as of a full memory, may kill."""
        is_killed = self.exit_code == _KILLED and self._was_killed_here
        return is_killed or self.exit_code == _TERMINATED

    @property
    def _has_left_call(self) -> bool:
        """Whether it ended in the middle of `fit` without an error, as `os._exit(0)` does."""
        return self.exit_code == 0 and launch_note.is_in_call(self._note)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the other tasks of the cluster, or has met them."""
        if not self._has_waited:  # It stays so; a note grows with each checkpoint.
            self._has_waited = launch_note.WAITING in launch_note.words_of(self._note)
        return self._has_waited

    def note_missed_by(self, other: Task) -> None:
        """Counts its end without an error as a failure: another task waits for it in vain."""
        if not self._was_told_to_end:
            self._missed_by = self._missed_by or other

    @property
    def failed(self) -> bool:
        """Whether it ended by itself with an error or too early, or did not respond."""
        if self.is_running or self.was_stopped:
            return False
        return self.exit_code != 0 or self._missed_by is not None or self._has_left_call

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended it, and nobody here has told it to end."""
        return self.failed and (self.exit_code or 0) > SIGNALED and self.exit_code != PEER_FAILED

    @property
    def is_frozen(self) -> bool:
        """Whether it is halted by SIGSTOP: alive, but doing nothing."""
        import psutil  # Here: `import kerasdist` should stay quick.

        try:
            return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        """Asks the task and its children to end, once."""
        if self.is_running and not self._was_told_to_end:
            self._was_told_to_end = True
            self._signal(signal.SIGTERM)

    def tell_loss(self, cause: str) -> None:
        """Tells the task, in a sentence, that it has lost a peer and is to end."""
        launch_note.tell_loss(self._note, cause)

    def kill(self) -> None:
        """Kills the task and its children."""
        self._was_killed_here = self._was_killed_here or self.is_running
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECS)

    def kill_frozen(self) -> None:
        """Kills the task because it does not respond; this counts as its failure."""
        self._was_frozen = True
        self.kill()

    def result(self) -> TaskResult:
        """Returns how the task ended; one that cannot even be killed counts as killed."""
        code = SIGNALED + signal.SIGKILL if self.exit_code is None else self.exit_code
        return TaskResult(
            task=self.task,
            exit_code=FAILED if self._has_failed_slowly else code,
            was_stopped=self.was_stopped,
            log=self.log,
        )

    def describe_failure(self) -> str:
        """Returns how it failed, as in "worker 1 failed with exit code 1"."""
        code = self.exit_code
        if self._missed_by:
            return (
                f"{self.task} never called `kerasdist.make_strategy`, where {self._missed_by} "
                f"waits for it, and exited with code {code}"
            )
        if self._has_left_call:
            return f"{self.task} ended in the middle of `fit` or `evaluate` with exit code {code}"
        if self._has_failed_slowly:
            return f"{self.task} failed with an error and was stopped while it was ending"
        if self._was_frozen:
            return f"{self.task} was halted (SIGSTOP) and did not respond, so it was killed"
        if self._process.returncode < 0 and code != PEER_FAILED:
            name = signal.strsignal(-self._process.returncode)
            return f"{self.task} was ended by a signal: {name} (exit code {code})"
        meaning = " (a peer failed)" if code == PEER_FAILED else ""
        return f"{self.task} failed with exit code {code}{meaning}"

    def _signal(self, number: int) -> None:
        # Only while it runs: its number may belong to somebody else afterwards.
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
