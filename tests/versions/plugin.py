"""The plugin of pytest that runs the promises alone, and says which of them held.

    python -m pytest -p tests.versions.plugin --promises=FILE

The file gets, for every promise, the names of the tests that passed and of those that did not.
"""

import json
import re
from pathlib import Path

# The tests of each promise, by a pattern of their names; all others are left out. One number of
# replicas and of workers is enough: what differs between versions does not depend on it.
PROMISES = {
    "private names": r"tests/private/",
    "replicas": r"tests/parity/test_cases\.py::test_equals_one_device\[.*3 replicas",
    "workers": r"tests/parity/test_cases\.py::test_equals_one_device_on_every.*clones\]",
    "callbacks": r"tests/callbacks/.*3 replicas",
    "parameter servers": r"tests/cluster/test_parameter_servers\.py::",
}
# Where they are: two groups that take about as long as each other, and run side by side.
GROUPS = (
    ("tests/private", "tests/parity/test_cases.py", "tests/cluster/test_parameter_servers.py"),
    ("tests/callbacks",),
)


def pytest_addoption(parser):
    """Adds the option that names the file."""
    parser.addoption("--promises", type=Path, required=True)


def pytest_configure(config):
    """Begins the record."""
    config.pluginmanager.register(_Recorder(config.getoption("promises")))


def pytest_collection_modifyitems(config, items):
    """Leaves out what is no promise."""
    left_out = [item for item in items if promise_of(item.nodeid) is None]
    items[:] = [item for item in items if promise_of(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)


def promise_of(nodeid: str) -> str | None:
    """Returns the promise that a test is about, by its name; None for most tests."""
    matches = (name for name, pattern in PROMISES.items() if re.match(pattern, nodeid))
    return next(matches, None)


class _Recorder:
    """Writes which tests passed to `path`."""

    def __init__(self, path: Path):
        self._path = path
        self._outcomes = {name: {"passed": [], "failed": []} for name in PROMISES}

    def pytest_runtest_logreport(self, report):
        promise = promise_of(report.nodeid)
        if promise is None or (report.when != "call" and report.passed):
            return
        # What is skipped was not shown to hold.
        outcome = "passed" if report.passed else "failed"
        self._outcomes[promise][outcome].append(report.nodeid)

    def pytest_sessionfinish(self):
        self._path.write_text(json.dumps(self._outcomes))
