"""The course of a launch: attempts on the machines that are there, until the job is done.

A fixed number of workers is a range in which the fewest are the most. With a true range, a worker
that is lost costs its place: the others go on without it, and it comes back later.
"""

import enum
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from kerasdist.cluster import Task
from kerasdist.launcher import reports
from kerasdist.launcher.attempt_watch import AttemptEnd, AttemptWatch, Crew
from kerasdist.launcher.machine import Attempt, Machine
from kerasdist.launcher.muster import Muster
from kerasdist.launcher.newcomers import Newcomers, Progress
from kerasdist.launcher.places import Places
from kerasdist.processes.result import LaunchResult, TaskResult
from kerasdist.processes.settings import Settings
from kerasdist.support.exit_codes import PEER_FAILED, SIGNALED, TIMED_OUT
from kerasdist.support.text import counted

_POLL_SECS = 0.05
# After all were told to save and end.
_ENDED_IN_ORDER = (PEER_FAILED, SIGNALED + signal.SIGTERM)


class _Stop(enum.Enum):
    """Why the leader has ended an attempt."""

    NOT = enum.auto()
    TIMEOUT = enum.auto()
    RESIZE = enum.auto()


class Leader:
    """Runs a program as all tasks of a cluster, and again if that may help.

    Args:
        settings: Tasks, limits and restarts.
        machines: Returns the machines that are there now. The first one runs worker 0.
        say: Shows lines of the launcher itself.
        plan: Returns what is said before the first attempt, for its tasks and their addresses.

    Attributes:
        end: How the launch ended, in some lines, with the error of the root cause.
    """

    def __init__(
        self,
        settings: Settings,
        machines: Callable[[], Sequence[Machine]],
        *,
        say: Callable[[str], None],
        plan: Callable[[Sequence[Task], Mapping[Task, str]], str],
    ):
        self._settings = settings
        self._say = say
        self._plan = plan
        self._places = Places(
            machines,
            fewest=settings.fewest_workers,
            most=settings.most_workers,
            away_secs=settings.resize_secs,
        )
        self._muster = Muster(settings, self._places, say=say)
        self._progress = Progress()
        self._num_restarts = 0
        self._num_in_a_row = 0  # Restarts after a failure, without a new checkpoint in between.
        self._num_checkpoints = 0  # At the last failure.
        self._last_error: str | None = None
        self._start = time.monotonic()
        self.end = ""

    def run(self) -> LaunchResult:
        """Runs the cluster until it is done, fails for good, or reaches a limit."""
        crew = self._muster.crew(self._deadline, settle=True)
        if crew is None:
            return self._concluded(self._in_vain())
        self._say(self._plan(crew.tasks, crew.addresses))
        while True:
            end, why = self._attempt(crew)
            result = self._result(end, why)
            if not self._goes_on(end, result, why):
                return self._concluded(result, end)
            crew = self._muster.crew(self._deadline)
            if crew is None:
                return self._concluded(self._in_vain(result.tasks))
            self._num_restarts += 1
            self._say(self._mark(crew))

    def _attempt(self, crew: Crew) -> tuple[AttemptEnd, _Stop]:
        mark = self._mark(crew) if self._num_restarts else ""
        attempt = Attempt(num_restarts=self._num_restarts, mark=mark)
        watch = AttemptWatch(crew, attempt, grace_secs=self._settings.grace_secs)
        try:
            watch.start()
            why = self._watch(watch, crew)
        except BaseException:
            # It is in no `finally`: a second interrupt must end the wait, the guard then kills.
            self._say("Stopping all tasks. Interrupt again to kill them at once.")
            watch.stop()
            while not watch.look():
                time.sleep(_POLL_SECS)
            self._say(f"All tasks stopped after {self._secs}.")
            raise
        return watch.end(), why

    def _watch(self, watch: AttemptWatch, crew: Crew) -> _Stop:
        """Waits until all tasks have ended; returns why they were told to, if they were."""
        newcomers = Newcomers(
            self._places,
            self._progress,
            num_workers=crew.num_workers,
            wait_secs=self._settings.resize_secs,
            say=self._say,
        )
        machines = [machine for machine, _ in crew.placed]
        why = _Stop.NOT
        while True:
            has_ended = watch.look()
            self._progress.look(machines)
            if why is _Stop.NOT:
                why = self._why_stop(watch, newcomers, machines)
                if why is not _Stop.NOT:
                    watch.stop()
            if has_ended:
                return why
            time.sleep(_POLL_SECS)

    def _why_stop(
        self, watch: AttemptWatch, newcomers: Newcomers, machines: Sequence[Machine]
    ) -> _Stop:
        if time.monotonic() >= self._deadline:
            return _Stop.TIMEOUT
        leaving = [machine.name for machine in machines if not machine.num_places]
        if leaving:
            self._say(f"{', '.join(leaving)} leaves: all save and end, and the others go on.")
            return _Stop.RESIZE
        return _Stop.RESIZE if watch.is_whole and newcomers.are_due() else _Stop.NOT

    def _result(self, end: AttemptEnd, why: _Stop) -> LaunchResult:
        cause = end.cause.root_cause
        if why is _Stop.RESIZE and end.exit_code in _ENDED_IN_ORDER:
            cause = None
        exit_code = end.exit_code if cause else 0
        rest = reports.describe_rest(end.lost, end.tasks)
        if why is _Stop.TIMEOUT and end.unfinished:
            cause, exit_code = None, TIMED_OUT
            reason = self._late(f"still running: {reports.names(end.unfinished)}")
        elif cause:
            failure = reports.describe_failure(
                end.cause.failure, self._secs, end.tasks, code=exit_code
            )
            reason = f"{failure}{rest}."
        else:
            reason = (
                f"Done after {self._secs}{rest}." if rest else f"All tasks done after {self._secs}."
            )
        return self._launch_result(exit_code, reason, end.tasks, cause)

    def _in_vain(self, tasks: Sequence[TaskResult] = ()) -> LaunchResult:
        """Returns how a launch ends that has waited for workers for too long."""
        number, fewest = self._places.count(), self._settings.fewest_workers
        there = f"{number} of at least {fewest} workers can run"
        if time.monotonic() >= self._deadline:
            return self._launch_result(TIMED_OUT, self._late(there), tasks)
        secs = self._settings.start_timeout_secs
        return self._launch_result(PEER_FAILED, f"{there}, and no more came for {secs:g} s.", tasks)

    def _late(self, state: str) -> str:
        return f"Not done within {self._settings.timeout_secs:g} s; {state}."

    def _launch_result(
        self,
        exit_code: int,
        reason: str,
        tasks: Sequence[TaskResult],
        root_cause: TaskResult | None = None,
    ) -> LaunchResult:
        return LaunchResult(
            exit_code=exit_code,
            tasks=tuple(tasks),
            root_cause=root_cause,
            reason=reason,
            num_restarts=self._num_restarts,
        )

    def _goes_on(self, end: AttemptEnd, result: LaunchResult, why: _Stop) -> bool:
        """Whether there is another attempt; a line says why, or why not."""
        if not result.root_cause:
            # All may have been done just then.
            goes_on = why is _Stop.RESIZE and any(each.exit_code for each in end.tasks)
            unsaved = reports.describe_unsaved(end.tasks, self._settings.grace_secs)
            if goes_on and unsaved:
                self._say(unsaved)
            return goes_on
        if self._settings.is_elastic and self._progress.num_checkpoints > self._num_checkpoints:
            self._num_in_a_row = 0
        self._num_checkpoints = self._progress.num_checkpoints
        for _, machine in end.lost_workers:
            self._places.lose(machine)
        self._places.take_back()
        if why_not := self._why_not_again(end):
            self._say(f"Not started again: {why_not}.")
            return False
        if self._num_in_a_row >= self._settings.most_restarts:
            return False
        self._num_in_a_row += 1
        self._last_error = end.cause.error
        self._say(self._describe_loss(end) or _described(result, end))
        return True

    def _why_not_again(self, end: AttemptEnd) -> str:
        most = self._settings.most_restarts
        if self._num_in_a_row >= most:
            if not (self._settings.is_elastic and most):
                return ""
            return f"{counted(most, 'restart')} in a row, and no new checkpoint in between"
        if end.lost_workers and self._settings.is_elastic:
            return ""
        return reports.why_hopeless(end.exit_code, end.tasks, end.cause.error, self._last_error)

    def _describe_loss(self, end: AttemptEnd) -> str:
        """Returns the line about workers that a range goes on without; "" for other failures."""
        if not end.lost_workers or not self._settings.is_elastic:
            return ""
        secs = self._places.secs_until_next()
        back = "" if secs is None else f" A lost place comes back in {secs:.0f} s."
        lost = reports.names(task for task, _ in end.lost_workers)
        return f"Lost {lost} after {self._secs}: {end.cause.failure}.{self._cost}{back}"

    @property
    def _cost(self) -> str:
        """What is made again, as far as launchers know: they hear of checkpoints, not of steps."""
        step = self._progress.newest_step
        if step is None:
            return ""
        secs = time.monotonic() - self._progress.newest_at
        return f" At most the {secs:.0f} s since the checkpoint of step {step} are made again."

    def _mark(self, crew: Crew) -> str:
        return reports.restart_mark(
            self._settings, self._num_restarts, crew.num_workers, self._progress.newest_step
        )

    def _concluded(self, result: LaunchResult, end: AttemptEnd | None = None) -> LaunchResult:
        self.end = _described(result, end)
        self._say(self.end)
        if end and result.exit_code == 0 and len(result.tasks) > 1 and not end.has_joined:
            self._say(reports.describe_separate_runs(len(result.tasks)))
        return result

    @property
    def _secs(self) -> str:
        return f"{time.monotonic() - self._start:.1f} s"

    @property
    def _deadline(self) -> float:
        timeout_secs = self._settings.timeout_secs
        return math.inf if timeout_secs is None else self._start + timeout_secs


def _described(result: LaunchResult, end: AttemptEnd | None) -> str:
    """Returns how an attempt ended: the root cause's error in a line, and where its output is.

    Its traceback was shown when the task wrote it, and is not shown again.
    """
    details = end.cause.details if end and result.root_cause else ()
    return "\n".join([result.reason, *(f"  {line}" for line in details)])
