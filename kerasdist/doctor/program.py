"""The check-up of a program: its first steps on one device, and on the deployment.

    python -m kerasdist doctor --clones 2 -- python train.py --epochs 3

The program runs as it is, in processes of its own (see `probe`), and is ended after a few training
steps. The truth is plain Keras, without any strategy.
"""

import contextlib
import dataclasses
import io
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from kerasdist import launcher
from kerasdist.comparison.comparison import Comparison, compare, describe_rounding
from kerasdist.comparison.reasons import may_be_natural, reasons
from kerasdist.comparison.recording import Recording
from kerasdist.doctor.settings import Settings
from kerasdist.launcher.command import check_is_no_notebook, split_python
from kerasdist.processes import task_log, tracebacks
from kerasdist.strategies import Choice
from kerasdist.support.checks import check_int
from kerasdist.support.text import counted
from kerasdist.support.usage_error import UsageError, arguments_checked

NUM_STEPS = 5
_WIDTH = 100
_TRUTHS = {"none": "plain Keras", "one device": "kerasdist's OneDeviceStrategy"}


def examine(
    program: Sequence[str],
    *,
    num_steps: int = NUM_STEPS,
    num_clones: int | None = None,
    num_workers: int | None = None,
    is_alike: bool = False,
) -> int:
    """Examines a program, prints what is found, and returns the exit code: 1 if it differs.

    Args:
        program: The command and its arguments, ["python", "train.py"].
        num_steps: Training steps to compare.
        num_clones: Replicas of each worker, in place of the deployment that the program asks for.
        num_workers: Workers, likewise.
        is_alike: Whether all examples draw the same random numbers, and batch statistics are those
            of the global batch. Otherwise this is done in a second run, if it may show the reason.

    Raises:
        UsageError: The command does not run Python, a number is out of range, or the program cannot
            be examined: it makes no step, or trains on parameter servers.
    """
    numbers = {"--steps": num_steps, "--clones": num_clones, "--workers": num_workers}
    with arguments_checked():
        for flag, number in numbers.items():
            if number is not None:
                check_int(flag, number, at_least=1)
    command = _split(program)
    print(f"Doctor\n{_row('program', shlex.join(program))}", flush=True)
    python = Path(shutil.which(command[0][0]) or "")
    if python.parent != Path(sys.executable).parent:  # It may have other packages.
        print(_row("python", f"{python}; the doctor's is {sys.executable}"), flush=True)
    with tempfile.TemporaryDirectory(prefix="kerasdist-doctor-") as folder:
        settings = Settings(
            folder=folder,
            strategy="none",
            num_steps=num_steps,
            num_clones=num_clones,
            num_workers=num_workers,
            is_alike=is_alike,
        )
        try:
            return _examine(command, settings)
        except _ProgramFailedError as failure:
            print(failure)
            return 1


_ONE_DEVICE = (
    "the deployment is one device, too, so that this compares kerasdist with plain Keras, and no "
    "replicas. `--clones 2` compares those, on logical CPUs if there are no GPUs."
)


class _ProgramFailedError(Exception):
    """The user's program ended with an error; the message has its last lines."""


def _examine(command: tuple[list[str], list[str]], settings: Settings) -> int:
    found, deployment, told = _look(command, settings)
    alike = None
    if not settings.is_alike and may_be_natural(found):
        print(_row("once more", "with random draws and batch statistics made alike"), flush=True)
        alike, *_ = _look(command, dataclasses.replace(settings, is_alike=True))
    print(_row("data", _describe_data(found)))
    if deployment.num_replicas == 1:
        print(_row("note", _ONE_DEVICE))
    if not found.began_alike:
        print(_row("weights", "initial values differed; copied from one device"))
    for text in told:
        print(_wrapped("warning", text))
    if found.is_equal:
        print(f"Equal in {counted(found.num_steps[0], 'step')}: {found.describe()}.")
        return 0
    print(found.describe())
    print("Likely reason:")
    for reason in reasons(found, num_replicas=deployment.num_replicas, alike=alike):
        print(textwrap.fill(reason, _WIDTH, initial_indent="  - ", subsequent_indent="    "))
    if alike:
        print(_describe_alike(alike))
    return 1


def _look(
    command: tuple[list[str], list[str]], settings: Settings
) -> tuple[Comparison, Choice, list[str]]:
    """Runs the program on one device and on the deployment; returns the warnings of this, too."""
    truth, folder = _run_truth(command, settings)
    deployment = truth.deployment
    assert deployment is not None
    is_launched = deployment.num_workers > 1
    settings = dataclasses.replace(
        settings, strategy="deployment", is_launched=is_launched, truth=folder
    )
    ours, _ = _record(command, settings, deployment)
    if ours.allreduce_dtype and ours.num_calls:
        exact, _ = _record(command, dataclasses.replace(settings, is_rounded=False), deployment)
        print(_wrapped("16 bits", describe_rounding(exact, ours)), flush=True)
        ours = exact
    return compare(truth, ours), deployment, ours.warnings


def _run_truth(command: tuple[list[str], list[str]], settings: Settings) -> tuple[Recording, str]:
    """Runs the program with plain Keras or, if it needs a strategy, on our one device.

    Raises:
        UsageError: The program cannot be examined.
    """
    truth, folder = _record(command, settings)
    if what := truth.needs_strategy:
        print(_row("", f"{what} needs a strategy, so this is one device of kerasdist:"))
        settings = dataclasses.replace(settings, strategy="one device")
        truth, folder = _record(command, settings)
    if truth.deployment is None:
        raise UsageError(
            "The program never calls `kerasdist.make_strategy`, so that it trains on one device "
            "everywhere. Create and compile the model in the scope of that strategy."
        )
    if truth.deployment.num_ps:
        raise UsageError(
            "The program asks for parameter servers, whose workers are not watched. Examine it on "
            "replicas without them, with `--clones` or `--workers`."
        )
    if not truth.num_calls:
        raise UsageError(
            "The program makes no training step with `fit` or `train_on_batch`: there is nothing "
            "to compare. Training loops of its own are not watched."
        )
    return truth, folder


def _record(
    command: tuple[list[str], list[str]], settings: Settings, deployment: Choice | None = None
) -> tuple[Recording, str]:
    """Runs the program in one of these ways; returns what was recorded, and where.

    Raises:
        _ProgramFailedError: It failed.
    """
    folder, logs = (Path(tempfile.mkdtemp(dir=settings.folder)) for _ in range(2))
    settings = dataclasses.replace(settings, folder=str(folder))
    python, program = command
    entry = [*python, "-m", "kerasdist.doctor.entry", json.dumps(dataclasses.asdict(settings))]
    start = time.monotonic()
    if settings.is_launched and deployment:
        failed_log = _launch([*entry, *program], deployment, logs)
    else:
        failed_log = _start([*entry, *program], logs / "log")
    if failed_log:
        raise _ProgramFailedError(_describe_failure(failed_log, settings.strategy, deployment))
    recording = Recording(folder)
    name = deployment if deployment else _TRUTHS[settings.strategy]
    if recording.num_calls or deployment:
        steps = f"{counted(recording.num_steps, 'step')} ({time.monotonic() - start:.0f} s)"
        ours = "deployment" if settings.is_rounded else "unrounded"
        print(_row(ours if deployment else "one device", f"{name}: {steps}"), flush=True)
    return recording, str(folder)


def _start(command: list[str], log: Path) -> Path | None:
    """Runs a command, and returns its log if it failed."""
    with log.open("wb") as file:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code < 0:
        with log.open("a") as file:
            file.write(f"\nKilled by signal {-code}.\n")
    return log if code else None


def _launch(command: list[str], deployment: Choice, logs: Path) -> Path | None:
    """Runs a command as all workers of a deployment, and returns the log of the one that failed."""
    with contextlib.redirect_stdout(io.StringIO()):  # The launch prints a lot about itself.
        result = launcher.launch(
            command,
            num_workers=deployment.num_workers,
            num_clones=len(deployment.devices),
            log_dir=logs,
        )
    return result.root_cause.log if result.root_cause else None


def _split(program: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns Python with its options, and what it runs.

    Raises:
        UsageError: The command does not run Python.
    """
    with arguments_checked():
        check_is_no_notebook("program", program)
    python, arguments = split_python(program)
    if not python or not shutil.which(python[0]):
        raise UsageError(
            "The doctor examines programs that Python runs: `python -m kerasdist doctor -- python "
            f"train.py`. Received: {shlex.join(program)}."
        )
    if len(arguments) < (2 if arguments[:1] in (["-m"], ["-c"]) else 1):
        raise UsageError(f"There is no program to run in: {shlex.join(program)}.")
    if arguments[0] not in ("-m", "-c") and not Path(arguments[0]).exists():
        raise UsageError(f"There is no such file: {arguments[0]} (in {Path.cwd()}).")
    return python, arguments


def _row(title: str, text: object) -> str:
    return f"  {title:<10}  {text}"


def _wrapped(title: str, text: str) -> str:
    return textwrap.fill(_row(title, text), _WIDTH, subsequent_indent=_row("", ""))


def _describe_failure(log: Path, strategy: str, deployment: Choice | None) -> str:
    _, mark, traceback = log.read_text(errors="replace").rpartition(tracebacks.BEGIN)
    last = mark + traceback if mark else "\n".join(task_log.last_lines(log))
    where = f"on the deployment, {deployment}" if deployment else _TRUTHS[strategy]
    if not deployment:
        where = f"on one device, with {where}"
    return f"\nThe program failed {where}:\n\n{last.rstrip()}"


def _describe_data(found: Comparison) -> str:
    if found.step is None:
        return "none was trained on by both"
    if found.step.examples is None:
        return "each worker reads its own part, which was not compared"
    if found.other_data_from is None:
        return f"the same examples in each step, {len(found.step.examples)} in the last one"
    return f"different examples from step {found.other_data_from} on"


def _describe_alike(alike: Comparison) -> str:
    if alike.is_equal:
        return (
            "With random draws and batch statistics made alike, nothing else differs: equal in "
            f"{counted(alike.num_steps[0], 'step')}, largest difference {alike.largest:.1e}. To "
            "examine it like that from the start: `--alike`."
        )
    return (
        f"With random draws and batch statistics made alike, it still differs.\n{alike.describe()}"
    )
