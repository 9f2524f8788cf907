"""Runs attempts one after another in a process that may hang or die, and says which end wrongly.

A process is forked from one that has imported TensorFlow. It makes the attempts in turn; where one
takes too long, or ends the process, another process goes on with the next. The attempts depend on
the seed and their numbers alone:

    python -m tests.models.damage.runner SEED NUMBER
"""

import contextlib
import dataclasses
import functools
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from random import Random

from models.usage_error import printable
from tests.models.damage import attempts, inputs
from tests.models.damage.attempts import Attempt, Kind

_SECS = 30.0  # For an attempt, which takes less than one where nothing else is computed.
_BEGIN_SECS = 120.0
_MOST_BYTES = 24 << 30  # Of memory: what asks for more ends itself, and not the machine's programs.
_INTERNALS = ("{{", "[Op:", " object at 0x", "site-packages")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended.

    Args:
        code: The exit code; None if something was raised.
        stdout: What was printed there.
        stderr: What was printed there, or the traceback.
    """

    code: int | None
    stdout: str
    stderr: str


def write_whole(whole: Path) -> None:
    """Writes all inputs, and what comes of them."""
    inputs.write(whole)
    stdout = io.StringIO()
    with contextlib.chdir(whole), contextlib.redirect_stdout(stdout):
        attempts.write_expected(whole)
    # What is predicted is printed last.
    (whole / "predicted.txt").write_text(f"image.png{stdout.getvalue().rpartition('image.png')[2]}")


def run_all(
    seed: int,
    numbers: Iterable[int],
    folder: Path,
    *,
    kinds: Sequence[Kind] = attempts.KINDS,
    write: Callable[[Path], None] = write_whole,
    secs: float = _SECS,
) -> list[str]:
    """Makes attempts, and returns a text for each that ends wrongly.

    Call it in `fork_server.call`: TensorFlow must not have been started in this process.

    Args:
        seed: Decides, with the number, what is damaged and how.
        numbers: Of the attempts.
        folder: An empty one, for the inputs.
        kinds: What is attempted, in turn.
        write: Writes the inputs.
        secs: Time for an attempt.
    """
    left, wrong = list(numbers), list[str]()
    run = functools.partial(run_one, seed, kinds=kinds, whole=folder / "whole")
    [(_, told)] = _in_child(lambda _: write(folder / "whole") or "", [0], secs=_BEGIN_SECS)
    if told:
        raise RuntimeError(f"The inputs cannot be written: {told}")
    while left:
        ended = _in_child(functools.partial(run, folder=folder), left, secs=secs)
        wrong += [f"{number} of seed {seed}: {told}" for number, told in ended if told]
        left = left[len(ended) :]
    return wrong


def run_one(
    seed: int,
    number: int,
    *,
    kinds: Sequence[Kind],
    whole: Path,
    folder: Path,
) -> str:
    """Makes an attempt in this process; returns how it ends wrongly, or ""."""
    kind = kinds[number % len(kinds)]
    place = folder / str(number)
    shutil.copytree(whole, place)
    with contextlib.chdir(place):
        attempt = kind(Random(f"{seed} {number}"), whole)
        outcome = _outcome_of(attempt.run)
        told = verdict(attempt, outcome)
    shutil.rmtree(place)
    return told and f"{getattr(kind, '__name__', kind)} {told}\n{outcome.stdout}{outcome.stderr}"


def verdict(attempt: Attempt, outcome: Outcome) -> str:
    """Returns what is wrong with the end of an attempt; "" if nothing is."""
    printed = outcome.stdout + outcome.stderr
    errors = [line for line in outcome.stderr.split("\n") if line.startswith("error: ")]
    if outcome.code is None or "Traceback" in printed:
        return "raises what it should explain"
    if outcome.code not in (0, *attempt.codes):
        return f"has the exit code {outcome.code}"
    if any(printable(line) != line for line in printed.replace("\t", " ").split("\n")):
        return "steers the terminal"
    if not outcome.code:
        silent = attempt.silent(outcome.stdout, outcome.stderr)
        return silent and f"takes for whole what is damaged: {silent}"
    if len(errors) != 1:
        return f"explains itself in {len(errors)} lines"
    if found := [each for each in _INTERNALS if each in errors[0]]:
        return f"shows internals: {found}"
    return "" if attempts.tells(errors[0], attempt) else f"does not name {attempt.damaged}"


def _outcome_of(run: Callable[[], int]) -> Outcome:
    stdout, stderr = io.StringIO(), io.StringIO()
    code: int | None = None
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = run()
        except BaseException:
            traceback.print_exc(file=stderr)
    return Outcome(code=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def _in_child(
    run: Callable[[int], str], numbers: Sequence[int], *, secs: float
) -> list[tuple[int, str]]:
    """Calls a function with numbers in a forked process, until one hangs or ends the process."""
    ours, theirs = Pipe()
    process = os.fork()
    if not process:
        ours.close()
        _serve(theirs, run, numbers)
    theirs.close()
    ended = []
    try:
        for number, told in zip(numbers, _answers(ours, process, secs), strict=False):
            ended.append((number, told))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return ended


def _answers(connection: Connection, process: int, secs: float) -> Iterator[str]:
    """Yields what each call returns; last, how one hung or ended the process."""
    while True:
        if not connection.poll(secs):
            yield f"takes longer than {secs:g} s"
            return
        try:
            yield connection.recv()
        except EOFError:
            ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
            yield f"ends the process with {ended.si_status if ended else 'an unknown code'}"
            return


def _serve(connection: Connection, run: Callable[[int], str], numbers: Sequence[int]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    with open(os.devnull, "w") as nothing:  # What TensorFlow writes from its own threads.
        os.dup2(nothing.fileno(), 2)
    warnings.simplefilter("always")
    for number in numbers:
        try:
            told = run(number)
        except BaseException:  # The attempt could not be made.
            told = traceback.format_exc()
        connection.send(told)
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        told = run_all(int(sys.argv[1]), [int(sys.argv[2])], Path(name))
        print(told or "It ends well.", f"{time.monotonic() - began:.1f} s", sep="\n")
