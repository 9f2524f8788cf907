"""What a test starts, with all that this starts: it ends in time, and nothing is left of it."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
# `python` as in an environment that is activated; torchrun has one of its own; and the daemons of
# Debian are not in the path of every user.
PATH = os.pathsep.join(
    [
        str(Path(sys.executable).parent),
        os.environ["PATH"],
        str(ROOT / ".venvs/torchrun/bin"),
        "/usr/sbin",
    ]
)
_END_SECS = 10
_MARK = "KERASDIST_TEST_OF_SCHEDULERS"


def needs(*programs: str, package: str):
    """Returns a mark that skips tests where one of the programs is not installed."""
    absent = [name for name in programs if not shutil.which(name, path=PATH)]
    reason = f"not installed: {', '.join(absent)} ({package})"
    return pytest.mark.skipif(bool(absent), reason=reason)


class TimeLimitError(Exception):
    """A command has not ended in time; all that it has started is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a command ended, and what it wrote."""

    exit_code: int
    output: str


@dataclass(kw_only=True, slots=True)
class Started:
    """A command that runs."""

    process: subprocess.Popen
    log: Path

    @property
    def output(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout_secs: float) -> Outcome:
        """Returns how it ended."""
        try:
            code = self.process.wait(timeout_secs)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(f"{error}\n{self.output[-8000:]}") from error
        return Outcome(exit_code=code, output=self.output)

    def kill(self) -> None:
        """Kills it, and what it has started."""
        process = psutil.Process(self.process.pid)
        for each in [process, *process.children(recursive=True)]:
            each.kill()
        self.process.wait()


@dataclass(kw_only=True, slots=True)
class Processes:
    """The processes of a test: daemons, commands, and what these start, also behind its back.

    Attributes:
        folder: Where they run.
        variables: What they find in their environment, beside that of the tests.
    """

    folder: Path
    variables: dict[str, str]

    def start(self, *command: str, **variables: str) -> Started:
        """Starts a command, in a session of its own."""
        descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".output")
        with open(descriptor, "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Started(process=process, log=Path(name))

    @contextlib.contextmanager
    def daemon(self, *command: str) -> Generator[Started]:
        """Runs a command that ends when it is told to."""
        started = self.start(*command)
        try:
            yield started
        finally:
            started.process.terminate()
            started.wait(_END_SECS)

    def run(self, line: str, *, timeout_secs: float = 120, **variables: str) -> Outcome:
        """Runs a line as a shell does, and returns how it ended."""
        return self.start("bash", "-c", line, **variables).wait(timeout_secs)

    def left(self) -> list[psutil.Process]:
        """Returns those that still run: all whose environment has the mark of this test."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(_MARK) == self.variables[_MARK]
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill_all(self) -> None:
        """Kills those that still run."""
        while left := self.left():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)


@contextlib.contextmanager
def none_left(folder: Path, variables: dict[str, str]) -> Generator[Processes]:
    """Gives a test its processes; when it is over, none of them runs any more.

    Raises:
        AssertionError: Some were still there some seconds after the test. They are killed.
    """
    found = Processes(folder=folder, variables={**variables, _MARK: str(folder)})
    try:
        yield found
    except BaseException:
        found.kill_all()
        raise
    end = time.monotonic() + _END_SECS
    while (left := found.left()) and time.monotonic() < end:
        time.sleep(0.1)
    commands = [" ".join(each.cmdline()) for each in left if each.is_running()]
    found.kill_all()
    assert not commands, "Still running:\n" + "\n".join(commands)
