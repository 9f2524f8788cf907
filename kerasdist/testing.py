"""Run a program as a small cluster inside a test.

    from kerasdist import testing


    def test_workers_agree():
        first, second = testing.run_cluster(train, num_workers=2)

        assert first.value == second.value

The processes are real, have their own network if the system allows it, and are gone afterwards.
"""

import io
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.cluster import Task
from kerasdist.launcher import Settings, function_program
from kerasdist.launcher.here import run_here
from kerasdist.launcher.launch import signals_end_the_launch
from kerasdist.launcher.reports import describe_timeout
from kerasdist.processes.guard import ISOLATED, Guard
from kerasdist.processes.result import TaskResult
from kerasdist.support.exit_codes import TIMED_OUT


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOutput:
    """What one task of `run_cluster` did.

    Attributes:
        task: Which one.
        exit_code: Its exit code; 128 + s if signal s ended it.
        output: All that it wrote, stdout and stderr in order.
        value: What the function returned; None if it did not return, and for scripts.
    """

    task: Task
    exit_code: int
    output: str
    value: Any = None


def run_cluster(
    program: Callable[[], Any] | Path | str,
    *,
    num_workers: int = 2,
    num_ps: int = 0,
    chief: bool = False,
    evaluator: bool = False,
    num_clones: int = 1,
    num_backup_workers: int | None = None,
    timeout_secs: float = 120.0,
    stop_on_failure: bool = True,
    network: str | None = None,
) -> list[TaskOutput]:
    """Runs a program as all tasks of a cluster and returns what each did.

    A task that fails does not raise an error here: look at `exit_code`.

    Args:
        program: A function without arguments, the `Path` of a script, or the source of one as text.
        num_workers: Workers.
        num_ps: Parameter servers, with a chief that they and the workers serve. They are stopped if
            they do not end by themselves after the chief.
        chief: Whether there is a chief in addition to the workers, even without parameter servers.
        evaluator: Whether there is an evaluator.
        num_clones: Replicas of each worker.
        num_backup_workers: As in `kerasdist.launch`.
        timeout_secs: Time for everything; then all tasks are killed.
        stop_on_failure: Whether the first task that fails stops the others, as with `launch`. False
            shows what they do by themselves, and also waits for the tasks that serve a chief.
        network: As in `kerasdist.launch`.

    Returns:
        One `TaskOutput` for each task, in the order chief, workers, ps, evaluator.

    Raises:
        TypeError: An argument has the wrong type, `program` is the name of a script as text, or the
            function cannot be sent to a process.
        ValueError: An argument is out of range, or this machine cannot run so many tasks.
        TimeoutError: Not everything was done in time; the message has the last lines of every task.

    Example:
        ```python
        results = run_cluster(kerasdist.is_chief, num_workers=2)
        assert [result.value for result in results] == [True, False]
        ```
    """
    with signals_end_the_launch(), Guard(isolate=network in (None, ISOLATED)) as guard:
        settings = Settings(
            num_workers=num_workers,
            num_ps=num_ps,
            chief=chief,
            evaluator=evaluator,
            num_clones=num_clones,
            num_backup_workers=num_backup_workers,
            timeout_secs=timeout_secs,
            log_dir=guard.folder / "logs",
            network=network,
        )
        result, _ = run_here(
            _command(program, guard.folder),
            settings,
            guard=guard,
            stream=io.StringIO(),
            for_all=not stop_on_failure,
        )
        if result.exit_code == TIMED_OUT and not result.root_cause:
            raise TimeoutError(describe_timeout(result))
        return _outputs(result.tasks, guard.folder)


def _outputs(ended: Sequence[TaskResult], folder: Path) -> list[TaskOutput]:
    values = function_program.values_of([each.task for each in ended], folder)
    return [
        TaskOutput(
            task=each.task,
            exit_code=each.exit_code,
            output=each.log.read_text(errors="replace"),
            value=value,
        )
        for each, value in zip(ended, values, strict=True)
    ]


def _command(program: Callable[[], Any] | Path | str, folder: Path):
    if callable(program):
        return function_program.pack(program, folder)
    if isinstance(program, Path):
        return [sys.executable, str(program)]
    if not isinstance(program, str):
        raise TypeError(
            "`program` must be a function, the Path of a script, or its source as text. "
            f"Received: program={program!r}."
        )
    if program.endswith(".py") and "\n" not in program:
        raise TypeError(f"Text is taken as source. Write `Path({program!r})` to run that file.")
    return [sys.executable, "-c", textwrap.dedent(program)]
