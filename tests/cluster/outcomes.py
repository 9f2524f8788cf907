"""Clusters of real processes with real TensorFlow, some at a time, and what became of each.

Waiting for a sign of life takes most of the time. So the clusters of all tests of a file run some
at a time, and each test looks at the outcome of its own.

    @of(alone, PROGRAM, num_workers=2)
    def test_something(outcome):
        assert outcome.codes == [0, 0]
"""

import functools
import os
import re
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests import fork_server

NUM_AT_ONCE = 2
MARK = "KERASDIST_TEST_FAULTS"
# Of a program: a model whose steps never end after some updates.
STUCK_STEP = """
class Stuck(keras.Sequential):
    def train_step(self, data):
        x, y = data
        is_stuck = self.optimizer.iterations.value > 30
        _, x = tf.while_loop(
            lambda is_stuck, x: is_stuck, lambda is_stuck, x: [is_stuck, x], [is_stuck, x]
        )
        return super().train_step((x, y))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a cluster ended.

    Attributes:
        codes: The exit code of each task; that of the launcher where it was started by that.
        outputs: The output of each task, or of the launcher.
        ended_at: When all was over, in seconds of `time.time`.
    """

    codes: list[int]
    outputs: list[str]
    ended_at: float

    @property
    def secs(self) -> float:
        """Seconds from the last `act()` to the end."""
        return self.ended_at - max(map(float, re.findall(r"acts at (\S+)", "".join(self.outputs))))


def alone(program: str, *, num_workers: int = 2, num_ps: int = 0) -> Outcome:
    """Runs a cluster that nobody stops."""
    results = fork_server.run_cluster(
        program,
        num_workers=num_workers,
        num_ps=num_ps,
        timeout_secs=240,
        stop_on_failure=False,
    )
    codes, outputs = zip(*((result.exit_code, result.output) for result in results), strict=True)
    return Outcome(codes=list(codes), outputs=list(outputs), ended_at=time.time())


def launched(program: str, *options: str) -> Outcome:
    """Runs two workers by `python -m kerasdist launch`."""
    command = [sys.executable, "-m", "kerasdist", "launch", "--workers=2", "--grace-secs=20"]
    code, output = fork_server.run(
        [*command, *options, "--", sys.executable, "-c", program],
        cwd=tempfile.mkdtemp(),  # For the logs.
        env=dict(os.environ),
        timeout_secs=150,
    )
    return Outcome(codes=[code], outputs=[output], ended_at=time.time())


def unwatched(program: str, starter: str, *arguments: str) -> Outcome:
    """Runs processes that start one by one: see `by_rank` and `by_agents`."""
    command = [sys.executable, "-m", f"tests.cluster.{starter}", *arguments]
    code, output = fork_server.run(
        [*command, "--", sys.executable, "-c", program],
        cwd=tempfile.mkdtemp(),  # For logs.
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout_secs=170,
    )
    return Outcome(codes=[code], outputs=[output], ended_at=time.time())


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(tmp_path_factory):
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("temporary")
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # Hides the lines of TensorFlow's C++.
        patch.setenv(MARK, mark)
        fork_server.stop()  # The next one reads these variables.
        yield
        fork_server.stop()
        assert not list(folder.glob("kerasdist-*"))
        assert not [each for each in psutil.process_iter() if is_marked(each, mark)]


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def started(request, nothing_is_left_behind):
    """The clusters of the tests that were asked for, by the tests' names."""
    items = [
        item
        for item in request.session.items
        if item.path == request.path and "outcome" in item.fixturenames
    ]
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        yield {item.name: pool.submit(item.callspec.params["outcome"]) for item in items}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def outcome(request, started):
    """How the cluster of this test ended."""
    return started[request.node.name].result()


def of(run, *args, **kwargs):
    """Gives a test the outcome of `run(*args, **kwargs)`."""
    call = functools.partial(run, *args, **kwargs)
    return pytest.mark.parametrize("outcome", [call], ids=[run.__name__], indirect=True)
