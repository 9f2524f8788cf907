"""TensorBoard's profile tab shows what each worker did: asked over its own interface.

Its plugin needs other versions of some packages than ours, so it has an environment of its own.
"""

from pathlib import Path

import pytest

from kerasdist.testing import run_cluster
from tests.tensorboard_server import served, wait_until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.exhaustive,  # tests/callbacks/test_profiler_trace.py asks what a trace holds.
]

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venvs/profile/bin/python"
RUN = "step-00000008"

PROGRAM = """
import keras
import numpy as np

import kerasdist

strategy = kerasdist.make_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((64, 2), "float32")
# Several steps: where a machine is busy, TensorFlow may note the end of a collective when the trace
# of a single one has just been taken.
trace = kerasdist.callbacks.ProfilerTrace({folder!r}, at_steps=[8], num_steps=3, tasks="all")
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[trace])
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function that returns what the profile plugin answers, from JSON."""
    if not PYTHON.exists():
        pytest.fail("The profile tab is not installed: `make .venvs/profile/installed`.")
    folder = str(tmp_path_factory.mktemp("run"))
    run_cluster(PROGRAM.format(folder=folder), num_workers=2)
    with served(folder, python=str(PYTHON)) as ask:
        wait_until(lambda: ask("profile/runs") == [RUN])
        yield lambda path, **query: ask(f"profile/{path}", run=RUN, **query)


def test_each_worker_has_a_profile(ask):
    hosts = ask("hosts", tag="trace_viewer@")

    assert hosts == [{"hostname": "worker-0"}, {"hostname": "worker-1"}]
    assert {"overview_page", "trace_viewer@", "framework_op_stats"} <= set(ask("run_tools"))


@pytest.mark.parametrize("host", ["worker-0", "worker-1"])
def test_the_trace_of_a_worker_holds_its_operations(ask, host):
    trace = ask("data", tag="trace_viewer@", host=host)
    names = " ".join(event.get("name", "") for event in trace["traceEvents"])

    assert "MatMul" in names
    assert "CollectiveReduce" in names
