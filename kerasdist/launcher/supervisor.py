"""The course of a launch: the plan, the attempts, and what is reported about each."""

import contextlib
import math
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kerasdist.cluster import Task
from kerasdist.messages.address import split_address
from kerasdist.processes import task_log
from kerasdist.processes.console import Console
from kerasdist.processes.guard import ISOLATED, Guard
from kerasdist.processes.result import LaunchResult, TaskResult
from kerasdist.processes.settings import Settings
from kerasdist.processes.task_environment import (
    addresses_of,
    addresses_of_this_machine,
    task_environment,
    tasks_of,
)
from kerasdist.processes.task_group import TaskGroup
from kerasdist.processes.task_log import RESTART_MARK, error_of, exception_of, last_lines
from kerasdist.processes.task_process import TaskProcess
from kerasdist.support import launch_note
from kerasdist.support.exit_codes import FAILED, PEER_FAILED, SIGNALED, TIMED_OUT, USAGE
from kerasdist.support.text import in_columns
from kerasdist.support.usage_error import UsageError

_LONGEST_TITLE = 200
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


class Supervisor:
    """Runs a program as all tasks of a cluster, and again if that may help.

    Args:
        program: The command and its arguments.
        settings: Tasks, limits and restarts.
        guard: Has the network; it must outlive this.
        stream: Where the plan, the tasks' output and the outcome are written, if anywhere.
        title: What the plan calls the program; the command by default.
        for_all: Whether a failed task leaves the others running until they end by themselves.

    Raises:
        UsageError: The directory of the logs cannot be written, or there are too many tasks.
    """

    def __init__(
        self,
        program: Sequence[str],
        settings: Settings,
        *,
        guard: Guard,
        stream: TextIO | None,
        title: str = "",
        for_all: bool = False,
    ):
        self._program = program
        self._settings = settings
        self._guard = guard
        self._title = textwrap.shorten(title or shlex.join(program), _LONGEST_TITLE)
        self._for_all = for_all
        self._tasks = tasks_of(settings)
        self._console = Console(stream, self._tasks)
        self._log_dir = Path(settings.log_dir or f"kerasdist_logs/{guard.run_id}")
        self._logs, self._log_lock = _make_logs(self._log_dir, self._tasks, guard.run_id)
        self._notes = {task: guard.folder / f"{log.stem}.note" for task, log in self._logs.items()}
        self._start = time.monotonic()
        self._is_isolated = guard.network == ISOLATED

    def run(self) -> LaunchResult:
        """Runs the cluster until it is done, fails for good, or reaches the timeout."""
        with self._log_lock:
            return self._run()

    def _run(self) -> LaunchResult:
        network = self._guard.network
        addresses = addresses_of(self._tasks)
        self._console.say(self._plan(addresses, network))
        if not self._is_isolated and self._settings.network == ISOLATED:
            print(_open_ports_warning(network, addresses), file=sys.stderr)
        num_restarts, last_error = 0, None
        result = self._attempt(addresses, num_restarts)
        while result.root_cause is not None and num_restarts < self._settings.max_restarts:
            error = _error_of(result)
            if hopeless := _why_hopeless(result, error, last_error):
                self._console.say(f"Not started again: {hopeless}.")
                break
            num_restarts, last_error = num_restarts + 1, error
            self._announce_restart(result, num_restarts)
            addresses = addresses_of(self._tasks)  # The old ones may still be held.
            result = self._attempt(addresses, num_restarts)
        self._console.say(self.describe_end(result))
        has_joined = any(map(launch_note.words_of, self._notes.values()))
        if result.exit_code == 0 and len(self._tasks) > 1 and not has_joined:
            self._console.say(_describe_separate_runs(len(self._tasks)))
        return result

    def _attempt(self, addresses: Mapping[Task, str], num_restarts: int) -> LaunchResult:
        run_id, console = self._guard.run_id, self._console
        guard_pid = self._guard.pid if self._is_isolated else 0

        def start(task: Task) -> TaskProcess:
            log, note = self._logs[task], self._notes[task]
            environ = task_environment(
                task,
                addresses,
                self._settings,
                run_id=run_id,
                num_restarts=num_restarts,
                note=note,
                shown_log=log if console.shows_bar_of(task) else None,
            )
            environ = {**os.environ, **environ}
            return TaskProcess(
                task, self._program, environ=environ, log=log, note=note, guard_pid=guard_pid
            )

        group = TaskGroup(self._settings, start, folder=self._guard.folder, console=console)
        try:
            group.start(self._logs)
            in_time = group.wait(self._deadline(), for_all=self._for_all)
            has_failed = in_time and group.has_failed  # Later ones were stopped.
            unfinished = [process.task for process in group.processes if process.is_running]
        except BaseException:
            # It is in no `finally`: a second interrupt must end the wait, the guard then kills.
            console.say("Stopping all tasks. Interrupt again to kill them at once.")
            group.stop()
            console.say(f"All tasks stopped after {self._secs()}.")
            raise
        group.stop()
        root_cause = group.root_cause() if has_failed else None
        return self._result(group, root_cause, [] if in_time else unfinished, num_restarts)

    def _secs(self) -> str:
        return f"{time.monotonic() - self._start:.1f} s"

    def _deadline(self) -> float:
        timeout_secs = self._settings.timeout_secs
        return math.inf if timeout_secs is None else self._start + timeout_secs

    def _result(
        self,
        group: TaskGroup,
        root_cause: TaskProcess | None,
        unfinished: Sequence[Task],
        num_restarts: int,
    ) -> LaunchResult:
        tasks = tuple(process.result() for process in group.processes)
        stopped = _names(result.task for result in tasks if result.was_stopped)
        secs = self._secs()
        also = f"; stopped: {stopped}" if stopped else ""
        also = f"; lost: {_names(group.lost)}{also}" if group.lost else also
        exit_code = 0
        if root_cause:
            exit_code = root_cause.result().exit_code or 1  # It may have ended too early.
            if done := _names(_done_before_failed_peer(exit_code, tasks)):
                also = f"; ended before it without an error: {done}{also}"
            reason = f"{root_cause.describe_failure()} after {secs}, the first to fail{also}."
        elif unfinished:
            exit_code = TIMED_OUT
            reason = (
                f"Not done within {self._settings.timeout_secs:g} s; still running: "
                f"{_names(unfinished)}."
            )
        else:
            reason = f"Done after {secs}{also}." if also else f"All tasks done after {secs}."
        return LaunchResult(
            exit_code=exit_code,
            tasks=tasks,
            root_cause=root_cause.result() if root_cause else None,
            reason=reason,
            num_restarts=num_restarts,
        )

    def _plan(self, addresses: Mapping[Task, str], network: str) -> str:
        rows = [("program", self._title)]
        rows += [(str(task), addresses.get(task, "outside the cluster")) for task in self._tasks]
        rows += [("network", _describe_network(network, addresses)), ("logs", f"{self._log_dir}")]
        return "\n".join(["Launch", *(f"  {line}" for line in in_columns(rows))])

    def _announce_restart(self, result: LaunchResult, num_restarts: int) -> None:
        mark = f"{RESTART_MARK} {num_restarts} of {self._settings.max_restarts} ---"
        for log in self._logs.values():
            with task_log.open_to_append(log) as file:
                file.write(f"{mark}\n".encode())
        self._console.say(f"{self.describe_end(result)}\n{mark}")

    def describe_end(self, result: LaunchResult) -> str:
        """Returns how a launch ended: the root cause's error in a line, and where its output is.

        Its traceback was shown when the task wrote it, and is not shown again.
        """
        cause = result.root_cause
        if not cause:
            return result.reason
        # A task that a signal or a lost peer ended has said nothing of its own.
        said = _last_words(cause.log) if cause.exit_code < SIGNALED else ""
        lines = [said, self._hint_for(said), f"Full output of {cause.task}: {cause.log}"]
        if task_log.is_full(cause.log.parent):
            lines.append(f"No space left on the disk of {cause.log.parent}: the logs end early.")
        return "\n".join([result.reason, *(f"  {line}" for line in lines if line)])

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


def describe_timeout(result: LaunchResult) -> str:
    """Returns the message of a launch that took too long: what each task did last."""
    logs = [f"Last lines of {each.task}:\n{_describe_log(each.log)}" for each in result.tasks]
    return "\n".join([result.reason, *logs])


def _describe_log(log: Path) -> str:
    return "\n".join(f"  {line}" for line in [*last_lines(log), f"({log})"])


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


def _error_of(result: LaunchResult) -> str | None:
    """Returns the error of a program that ended with one of its own."""
    if not result.root_cause or result.root_cause.exit_code != FAILED:
        return None
    return error_of(result.root_cause.log)


def _why_hopeless(result: LaunchResult, error: str | None, last_error: str | None) -> str:
    if result.exit_code == USAGE:
        return "exit code 2 means that the program was called wrongly"
    if done := _names(_done_before_failed_peer(result.exit_code, result.tasks)):
        return (
            f"no worker failed, and the program of {done} was over before that of the others; all "
            "workers must call `fit` and `evaluate`, in the same order"
        )
    if error is not None and error == last_error:
        return "the program failed with the same error twice in a row"
    return ""


def _describe_network(network: str, addresses: Mapping[Task, str]) -> str:
    if network == ISOLATED:
        return "isolated: the tasks reach each other and no one else"
    return (
        f"that of this machine: {_ports(addresses)} open, without a password, on "
        f"{', '.join(addresses_of_this_machine())}"
    )


def _ports(addresses: Mapping[Task, str]) -> str:
    ports = [str(split_address(address)[1]) for address in addresses.values()]
    return f"port{'' if len(ports) == 1 else 's'} {', '.join(ports)}"


def _open_ports_warning(reason: str, addresses: Mapping[Task, str]) -> str:
    return (
        f"warning: The cluster is open to the network ({reason}). TensorFlow's servers listen on "
        f"every interface, without authentication, on {_ports(addresses)}: whoever connects can "
        "run programs as you. Close them with a firewall, or allow user namespaces "
        "(docs/clusters.md)."
    )


def _describe_separate_runs(num_tasks: int) -> str:
    return (
        "warning: No task called `kerasdist.make_strategy`. Unless it joins the cluster in another "
        f"way, the program ran {num_tasks} times, each by itself. Let it call "
        "`strategy = kerasdist.make_strategy()` first, and make and compile its model in "
        "`with strategy.scope():`."
    )


def _done_before_failed_peer(exit_code: int, results: Iterable[TaskResult]) -> list[Task]:
    """Returns the synchronous workers that had ended in order if one says that a peer failed."""
    if exit_code != PEER_FAILED or any(each.task.job == "ps" for each in results):
        return []
    done = [each.task for each in results if each.exit_code == 0 and not each.was_stopped]
    return [task for task in done if task.job != "evaluator"]


def _names(tasks: Iterable[Task]) -> str:
    return ", ".join(str(task) for task in tasks)
