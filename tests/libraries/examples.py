"""The examples of docs/libraries.md, and what it takes to run one as the tasks of a deployment.

`make test-libraries` has an environment with the packages; elsewhere their tests are skipped.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

PAGE = Path(__file__).parents[2] / "docs/libraries.md"
# Arguments of `run_cluster`.
DEPLOYMENTS: dict[str, Any] = {
    "2 clones": {"num_workers": 1, "num_clones": 2},
    "2 workers": {"num_workers": 2},
    "1 worker + 1 ps": {"num_workers": 1, "num_ps": 1},
}
on_each = pytest.mark.parametrize("deployment", DEPLOYMENTS)


def needs(*packages: str):
    """Returns a mark that skips tests where one of the packages is not installed."""
    absent = [name for name in packages if not importlib.util.find_spec(name)]
    reason = f"not installed: {', '.join(absent)}; `make test-libraries` has it"
    return pytest.mark.skipif(bool(absent), reason=reason)


def example(heading: str) -> str:
    """Returns the first block of Python below a heading of the page."""
    (section,) = re.findall(rf"^##+ {heading}$(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)[0]


def run(program: str, deployment: str) -> str:
    """Runs a program in the current folder as each task of a deployment.

    Returns:
        What the chief, or the first worker, wrote.
    """
    outputs = fork_server.run_cluster(program, timeout_secs=240, **DEPLOYMENTS[deployment])
    for output in outputs:
        assert output.exit_code == 0, f"{output.task}\n{output.output[-4000:]}"
    return outputs[0].output
