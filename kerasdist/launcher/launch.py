"""The function `kerasdist.launch`."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, Unpack, overload

from kerasdist.launcher import function_program
from kerasdist.launcher.command import checked
from kerasdist.launcher.here import run_here
from kerasdist.launcher.rendezvous import run_at_rendezvous
from kerasdist.launcher.reports import describe_timeout
from kerasdist.processes.guard import Guard
from kerasdist.processes.result import LaunchResult
from kerasdist.processes.settings import Settings, SettingsOfLaunch
from kerasdist.support.exit_codes import SIGNALED, TIMED_OUT

Value = TypeVar("Value")


class LaunchError(RuntimeError):
    """A task of a launched function failed; the message has the root cause and its error.

    Attributes:
        result: How each task ended.

    Example:
        ```python
        try:
            kerasdist.launch(train, num_workers=2)
        except kerasdist.LaunchError as error:
            print(error.result.root_cause.log)
        ```
    """

    def __init__(self, message: str, result: LaunchResult):
        super().__init__(message)
        self.result = result


@overload
def launch(program: Sequence[str], **settings: Unpack[SettingsOfLaunch]) -> LaunchResult: ...
@overload
def launch(program: Callable[[], Value], **settings: Unpack[SettingsOfLaunch]) -> list[Value]: ...
def launch(
    program: Any,
    *,
    num_workers: int | tuple[int, int] = 2,
    num_ps: int = 0,
    chief: bool = False,
    evaluator: bool = False,
    num_clones: int = 1,
    num_backup_workers: int | None = None,
    max_restarts: int | None = None,
    grace_secs: float = 10.0,
    timeout_secs: float | None = None,
    start_timeout_secs: float = 300.0,
    resize_secs: float = 60.0,
    frozen_timeout_secs: float = 60.0,
    log_dir: str | os.PathLike[str] | None = None,
    network: str | None = None,
    rendezvous: str | None = None,
):
    """Runs a program as all tasks of a cluster on this machine, each in a process of its own.

    With a rendezvous, it runs one worker of a job on many machines.

    Every task finds itself and its peers in TF_CONFIG, so the program is the one that runs on many
    machines. Output appears line by line with the task in front; each task has a log file. The
    first task that fails stops the others, except that, with parameter servers, the others continue
    if a worker is killed. No process that was started outlives the call.

    Args:
        program: A command and its arguments, or a function without arguments. A script may be given
            without `python`. A function runs in fresh Python processes, and may be defined in a
            notebook. Give it arguments with `functools.partial`.
        num_workers: Workers; or a range, (1, 4), in which the job goes on with those that are left
            if one is lost, and with more again later. It needs a `Checkpoint`, from which each
            start goes on.
        num_ps: Parameter servers. With them there is a chief, which workers and parameter servers
            serve; they have some seconds to end by themselves when it is done.
        chief: Whether there is a chief in addition to the workers, even without parameter servers.
        evaluator: Whether there is an evaluator; the launch waits for its end.
        num_clones: Replicas of each worker; `make_strategy` reads it from KERASDIST_NUM_CLONES.
        num_backup_workers: With parameter servers, makes the workers synchronous: an update is the
            mean of the gradients of all but so many of them, and does not wait for the slowest. 0
            waits for all. None leaves it to the program, where asynchronous workers are the
            default; `make_strategy` reads it from KERASDIST_NUM_BACKUP_WORKERS.
        max_restarts: How often the whole cluster is started again after a failure; 0 by default.
            Exit code 2, or the same error of the program twice in a row, ends the launch at once.
            With parameter servers, a worker that is lost is started again alone, up to the same
            number of times. With a range of workers, how often in a row without a new checkpoint
            in between; 3 by default.
        grace_secs: Time to end after TERM, before KILL. Also the time that the others have to end
            by themselves if a task says that a peer failed: one of them had the error.
        timeout_secs: Time for everything, restarts included; no limit by default.
        start_timeout_secs: With a range of workers, how long the job waits while fewer than the
            fewest can run.
        resize_secs: With a range of workers, after how long the place of a lost one comes back, and
            how long one that comes back waits for the next checkpoint before the others are told to
            save.
        frozen_timeout_secs: How long a task may be halted (SIGSTOP) before it is killed.
        log_dir: Directory of the log files; `kerasdist_logs/<run id>` by default.
        network: "isolated": the cluster has its own network if the system allows it, since
            TensorFlow's servers listen on every interface without authentication; the tasks then
            reach files but no other machine. "host": they share the network of this machine. The
            default is "isolated", and with a rendezvous "host".
        rendezvous: "host:port" where the launches of one job meet, each of which runs one worker,
            most often on a machine of its own; `num_workers` counts those of the job. All get the
            same arguments and a command. The launch on whose machine the host is leads; if it
            ends, all do.

    Returns:
        For a command, a `LaunchResult` with the exit codes. For a function, the list of the values
        that it returned in each task, in the order chief, workers, ps, evaluator; None for a task
        that was stopped. With a range of workers, those of the last start.

    Raises:
        TypeError: An argument has the wrong type, or the function cannot be sent to a process.
        ValueError: An argument is out of range, the command or its script is not found,
            `log_dir` cannot be written, or this machine cannot run so many tasks.
        LaunchError: A task of the function failed, or too few workers could run. It is a
            RuntimeError.
        TimeoutError: The function was not done within `timeout_secs`.

    Example:
        ```python
        result = kerasdist.launch(["python", "train.py"], num_workers=4, max_restarts=3)
        print(result.exit_code, result.reason)
        ```
    """
    settings = Settings(
        num_workers=num_workers,
        num_ps=num_ps,
        chief=chief,
        evaluator=evaluator,
        num_clones=num_clones,
        num_backup_workers=num_backup_workers,
        max_restarts=max_restarts,
        grace_secs=grace_secs,
        timeout_secs=timeout_secs,
        start_timeout_secs=start_timeout_secs,
        resize_secs=resize_secs,
        frozen_timeout_secs=frozen_timeout_secs,
        log_dir=log_dir,
        network=network,
        rendezvous=rendezvous,
    )
    if callable(program):
        return _launch_function(program, settings)
    return _launch_command(checked(program), settings)


@contextlib.contextmanager
def signals_end_the_launch() -> Generator[None]:
    """Lets TERM and a closed terminal end the launch in order, with exit code 128 + signal."""
    replaced = {}
    if threading.current_thread() is threading.main_thread():  # Others cannot set handlers.
        for number in (signal.SIGTERM, signal.SIGHUP):
            # A handler that the user has set stays, and so does `nohup`.
            if signal.getsignal(number) is signal.SIG_DFL:
                replaced[number] = signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _exit(number: int, _: object):
    raise SystemExit(SIGNALED + number)


def _launch_command(command: list[str], settings: Settings) -> LaunchResult:
    with signals_end_the_launch(), Guard(isolate=settings.is_isolated) as guard:
        if settings.rendezvous:
            return run_at_rendezvous(command, settings, guard=guard, stream=sys.stdout)
        return run_here(command, settings, guard=guard, stream=sys.stdout)[0]


def _launch_function(function: Callable, settings: Settings):
    if settings.rendezvous:
        raise ValueError(
            "`program` must be a command where launches meet: a function would be another one in "
            f"each. Received: program={function!r}, rendezvous={settings.rendezvous!r}."
        )
    title = f"{getattr(function, '__qualname__', repr(function))}()"
    with signals_end_the_launch(), Guard(isolate=settings.is_isolated) as guard:
        program = function_program.pack(function, guard.folder)
        result, end = run_here(program, settings, guard=guard, stream=sys.stdout, title=title)
        if result.exit_code == TIMED_OUT and not result.root_cause:
            raise TimeoutError(describe_timeout(result))
        if result.exit_code:
            raise LaunchError(end, result)
        return function_program.values_of([ended.task for ended in result.tasks], guard.folder)
