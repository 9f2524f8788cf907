"""Runs the promises in one environment."""

import dataclasses
import functools
import json
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from tests.versions.environment import ROOT, Environment
from tests.versions.plugin import GROUPS, PROMISES

_WHICH = ("passed", "failed")
VERSIONS = "import keras, tensorflow as tf; print(f'{keras.__version__}, {tf.__version__}')"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What was found in one environment.

    Attributes:
        versions: Of Keras and TensorFlow.
        moved: The private names that have moved, as `private_names.Moved`.
        outcomes: Lists of tests by "passed" and "failed", by the promise.
        output: What pytest printed.
    """

    versions: str
    moved: list[dict]
    outcomes: dict[str, dict[str, list[str]]]
    output: str

    @property
    def holds(self) -> bool:
        """Whether every promise was shown to hold."""
        return not self.moved and all(map(self._holds, self.outcomes)) and bool(self.outcomes)

    def _holds(self, promise) -> bool:
        outcomes = self.outcomes[promise]
        return bool(outcomes["passed"]) and not outcomes["failed"]

    def cell(self, promise: str) -> str:
        """Returns what the table says of a promise."""
        if promise not in self.outcomes:
            return "not run"
        passed, failed = (len(self.outcomes[promise][each]) for each in ("passed", "failed"))
        if promise == "private names" and self.moved:
            return f"{len(self.moved)} MOVED"
        return f"{passed} hold" if self._holds(promise) else f"{failed} FAIL, {passed} hold"

    def details(self) -> list[str]:
        """Returns what to know where a promise does not hold, as lines."""
        if self.holds:
            return []
        lines = [f"\nKeras, TensorFlow {self.versions}"]
        for moved in self.moved:
            lines += [
                f"  {moved['name']} {moved['what']}",
                f"    used by: {', '.join(moved['used_by'])}",
                f"    look at: {', '.join(moved['look_at']) or 'nothing of a like name'}",
            ]
        return [*lines, *self.output.splitlines()[-60:]]


def examine(environment: Environment) -> Result:
    """Runs the promises; where kerasdist cannot even be imported, says why."""
    versions = _run(environment, "-c", VERSIONS).stdout.strip()
    lines = _run(environment, "-m", "tests.versions.private_names")
    moved = [json.loads(line) for line in lines.stdout.splitlines() if line.startswith("{")]
    with ThreadPoolExecutor(len(GROUPS)) as pool:
        found = list(pool.map(functools.partial(_outcomes_of, environment), GROUPS))
    output = "".join([lines.stderr, *(output for _, output in found)])
    outcomes = merged([outcomes for outcomes, _ in found])
    return Result(versions=versions, moved=moved, outcomes=outcomes, output=output)


def merged(parts: list[dict]) -> dict:
    """Returns the outcomes of all groups of tests; {} where one of them did not end."""
    if not all(parts):
        return {}
    return {
        name: {which: [*chain(*(part[name][which] for part in parts))] for which in _WHICH}
        for name in PROMISES
    }


def _outcomes_of(environment: Environment, paths: tuple[str, ...]) -> tuple[dict, str]:
    """Runs a group of tests; returns its outcomes, {} where it did not end, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "promises"
        # Those who write the plugins of the whole suite are not in every environment.
        options = ["-p", "tests.versions.plugin", f"--promises={path}", "-m", "not exhaustive"]
        options += ["--quiet", "--tb=short"]
        result = _run(environment, "-m", "pytest", *options, *paths)
        outcomes = json.loads(path.read_text()) if path.exists() else {}
    return outcomes, result.stdout + result.stderr


def _run(environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment.python), *arguments]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
