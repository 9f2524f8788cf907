"""The examples of docs/libraries.md, and what it takes to run one as the tasks of a deployment.

`make test-libraries` has an environment with the packages; elsewhere their tests are skipped.
"""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import fork_server

PAGE = Path(__file__).parents[2] / "docs/libraries.md"
# Arguments of `run_cluster`.
ONE_DEVICE = {"num_workers": 1}
DEPLOYMENTS: dict[str, Any] = {
    "2 clones": {"num_workers": 1, "num_clones": 2},
    "2 workers": {"num_workers": 2},
    "1 worker + 1 ps": {"num_workers": 1, "num_ps": 1},
}
on_each = pytest.mark.parametrize("deployment", DEPLOYMENTS)

_RESULT = "The result: "


def needs(*packages: str):
    """Returns a mark that skips tests where one of the packages is not installed."""
    absent = [name for name in packages if not importlib.util.find_spec(name)]
    reason = f"not installed: {', '.join(absent)}; `make test-libraries` has it"
    return pytest.mark.skipif(bool(absent), reason=reason)


def example(heading: str) -> str:
    """Returns the first block of Python below a heading of the page."""
    (section,) = re.findall(rf"^##+ {heading}$(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[0]


def run(program: str, deployment: str, *, result: str = "None") -> list:
    """Runs a program in the current folder as each task of a deployment.

    Args:
        program: Its source.
        deployment: One of `DEPLOYMENTS`.
        result: An expression, of what the program has at its end.

    Returns:
        The values of the expression: of each worker, or of the chief of parameter servers.
    """
    return _results(program, result, DEPLOYMENTS[deployment])


def run_plain(program: str, *, result: str) -> Any:
    """Returns the truth: what the program makes without any strategy."""
    line = "strategy = kerasdist.make_strategy()\n"
    assert program.count(line) == 1
    without = program.replace(line, "import contextlib\nstrategy = None\n")
    without = without.replace("with strategy.scope():", "with contextlib.nullcontext():")
    (value,) = _results(without, result, ONE_DEVICE)
    return value


def _results(program, result, deployment) -> list:
    program = f"{program}\nprint({_RESULT!r}, {result})\n"
    outputs = fork_server.run_cluster(program, timeout_secs=240, **deployment)
    for output in outputs:
        assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
    found = [re.findall(rf"{_RESULT} (.*)", output.output) for output in outputs]
    return [ast.literal_eval(line) for (line,) in filter(None, found)]


def run_alone(program: str, **variables: str) -> str:
    """Runs a program in the current folder as one process, which may start others.

    Returns:
        What it wrote.

    Raises:
        subprocess.TimeoutExpired: It took longer. All its processes are killed.
    """
    command = [sys.executable, "-c", program]
    with tempfile.TemporaryFile("w+") as output:
        environ = {**os.environ, **variables}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)
        try:
            process.wait(240)
        finally:
            if process.poll() is None:
                for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                    each.kill()
        output.seek(0)
        written = output.read()
    assert process.returncode == 0, written[-8000:]
    return written
