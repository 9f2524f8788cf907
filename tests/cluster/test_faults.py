"""What happens when a worker dies, halts, fails or ends alone: real processes, real TensorFlow.

Starting TensorFlow takes most of the time, and waiting for a sign of life most of the rest. So the
clusters of all tests run some at a time, and each test looks at the outcome of its own.
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.testing import run_cluster
from kerasdist.training import peer_failure

NUM_AT_ONCE = 2
MARK = "KERASDIST_TEST_FAULTS"
LOST = r"worker {} \(127\.0\.0\.1:\d+\) ends because worker {} \(127\.0\.0\.1:\d+\) "

# Every worker trains for a minute, unless `act()`, in the fourth step, ends that.
PROGRAM = """
import json, os, signal, sys, time

import keras
import numpy as np
import tensorflow as tf

import kerasdist

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


class Act(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        if batch == 3:
            print(f"acts at {time.time()}", flush=True)
            act()


def act():
    pass


def make_model():
    global model
    strategy = kerasdist.make_strategy(start_timeout_secs=60)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")


def fit(num_steps=3000, epochs=1):
    x, y = np.ones((4 * num_steps, 2), "float32"), np.ones((4 * num_steps, 1), "float32")
    make_model()
    model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[Act()])
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a cluster ended.

    Attributes:
        codes: The exit code of each worker; that of the launcher where it was started by that.
        outputs: The output of each worker, or of the launcher.
        ended_at: When all was over, in seconds of `time.time`.
    """

    codes: list[int]
    outputs: list[str]
    ended_at: float

    @property
    def secs(self) -> float:
        """Seconds from the last `act()` to the end."""
        return self.ended_at - max(map(float, re.findall(r"acts at (\S+)", "".join(self.outputs))))


def alone(source: str, *, num_workers: int = 2) -> Outcome:
    """Runs workers that nobody stops."""
    results = run_cluster(
        PROGRAM + source, num_workers=num_workers, timeout_secs=150, stop_on_failure=False
    )
    codes, outputs = zip(*((result.returncode, result.output) for result in results), strict=True)
    return Outcome(codes=list(codes), outputs=list(outputs), ended_at=time.time())


def launched(source: str, *options: str) -> Outcome:
    """Runs two workers by `python -m kerasdist launch`."""
    command = [sys.executable, "-m", "kerasdist", "launch", "--workers=2", "--grace-secs=20"]
    result = subprocess.run(
        [*command, *options, "--", sys.executable, "-c", PROGRAM + source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tempfile.mkdtemp(),  # For the logs.
        timeout=150,
        text=True,
    )
    return Outcome(codes=[result.returncode], outputs=[result.stdout], ended_at=time.time())


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(tmp_path_factory):
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("temporary")
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # Hides the lines of TensorFlow's C++.
        patch.setenv(MARK, mark)
        yield
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
        if item.path == Path(__file__) and "outcome" in item.fixturenames
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


def names_lost(output: str, *, survivor: int, lost: int) -> bool:
    return re.search(LOST.format(survivor, lost), output) is not None


@of(
    alone,
    """
def act():
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)

fit()
""",
)
def test_killed_worker_ends_the_other_with_a_short_message_that_names_it(outcome):
    assert outcome.codes == [138, 137]
    assert outcome.secs < 30
    *_, who, code, reason = outcome.outputs[0].splitlines()
    assert names_lost(who, survivor=0, lost=1)
    assert "gave no sign of life" in who
    assert code == (
        "  Exit code 138: a peer failed, and worker 0 did nothing wrong. Start the whole job again."
    )
    assert reason.startswith("  TensorFlow: UnavailableError: Collective ops is aborted by: ")
    assert "Traceback" not in outcome.outputs[0]


@of(
    alone,
    """
def act():
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)

try:
    fit()
except tf.errors.OpError as error:
    if index == 0:
        raise
    raise RuntimeError("what the program made of it") from error
""",
    num_workers=3,
)
def test_all_name_the_killed_worker_and_not_one_that_followed(outcome):
    assert outcome.codes == [138, 138, 137]
    assert outcome.secs < 30
    for survivor in (0, 1):
        assert names_lost(outcome.outputs[survivor], survivor=survivor, lost=2)
        assert not names_lost(outcome.outputs[survivor], survivor=survivor, lost=1 - survivor)
    assert "RuntimeError: what the program made of it" in outcome.outputs[1]


@of(
    launched,
    """
def act():
    if index == 1:
        raise ValueError("my own bug")

fit()
""",
)
def test_error_of_one_worker_is_told_to_the_other_and_the_root_cause(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [1]
    assert outcome.secs < 30
    assert names_lost(output, survivor=0, lost=1)
    assert re.search(r"worker 0 \| .* failed: ValueError: my own bug\n", output)
    assert "worker 0 | Traceback" not in output
    cause = output.split("\nLast lines of ")[1]
    assert cause.startswith("worker 1:")
    assert "  ValueError: my own bug\n" in cause
    assert "worker 1 failed with exit code 1 after" in cause


@of(
    alone,
    """
make_model()
if index == 1:
    raise tf.errors.UnavailableError(None, None, "the storage does not answer")
with model.distribute_strategy.scope():
    tf.Variable(1.0)  # Waits for the other.
""",
)
def test_unavailable_storage_is_an_error_of_its_own_and_a_loss_outside_of_fit_is_seen(outcome):
    assert outcome.codes == [138, 1]
    assert "Traceback" in outcome.outputs[1]
    assert "Exit code 138" not in outcome.outputs[1]
    assert names_lost(outcome.outputs[0], survivor=0, lost=1)
    assert "failed: UnavailableError: the storage does not answer" in outcome.outputs[0]


@of(
    launched,
    """
def act():
    if index == 0:
        os.kill(os.getpid(), signal.SIGSTOP)

fit()
""",
)
def test_halted_worker_is_noticed_and_killed(outcome):
    assert outcome.codes == [137]
    assert outcome.secs < 60
    assert names_lost(outcome.outputs[0], survivor=1, lost=0)
    assert "worker 0 was halted (SIGSTOP)" in outcome.outputs[0].splitlines()[-1]


@of(
    alone,
    """
def own_handler(number, frame):
    pass

def act():
    if index == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    print(f"kept: {signal.getsignal(signal.SIGTERM) is own_handler}", flush=True)

if index == 1:
    signal.signal(signal.SIGTERM, own_handler)
fit()
""",
)
def test_term_ends_a_worker_and_a_handler_of_the_program_stays(outcome):
    assert outcome.codes == [143, 138]
    assert outcome.secs < 10
    assert "kept: True" in outcome.outputs[1]


SIGNAL_TO_THE_LAUNCHER = """
def act():
    if index == 1:
        os.kill(os.getppid(), signal.{})

fit()
"""


@of(launched, SIGNAL_TO_THE_LAUNCHER.format("SIGINT"))
def test_interrupt_of_the_launcher_ends_all(outcome):
    assert outcome.codes == [130]
    assert outcome.secs < 10  # The time to end after TERM, before KILL.


@of(launched, SIGNAL_TO_THE_LAUNCHER.format("SIGTERM"))
def test_term_to_the_launcher_ends_all(outcome):
    assert outcome.codes == [143]
    assert outcome.secs < 10


@of(
    alone,
    """
tf_config = json.loads(os.environ["TF_CONFIG"])
tf_config["cluster"]["worker"].append("127.0.0.1:1")
os.environ["TF_CONFIG"] = json.dumps(tf_config)
kerasdist.make_strategy(start_timeout_secs=5)
""",
    num_workers=1,
)
def test_worker_that_never_starts_is_named(outcome):
    assert outcome.codes == [1]
    assert "ClusterStartError: The cluster was not complete within 5 s." in outcome.outputs[0]
    assert "worker 1 (127.0.0.1:1): connection refused" in outcome.outputs[0]


@of(
    alone,
    """
from kerasdist.strategies.multi_worker import MultiWorkerMirroredStrategy

if index == 1:
    MultiWorkerMirroredStrategy.__init__ = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
kerasdist.make_strategy(start_timeout_secs=5)
""",
)
def test_worker_that_dies_while_tensorflow_starts_does_not_leave_the_other_waiting(outcome):
    assert outcome.codes == [138, 137]
    assert "TensorFlow did not connect the cluster within 5 s" in outcome.outputs[0]


@of(
    alone,
    """
os.environ["KERASDIST_NUM_CLONES"] = "2" if index == 0 else "1"
make_model()
""",
)
def test_workers_with_other_numbers_of_clones_end_with_the_same_error(outcome):
    assert outcome.codes == [1, 1]
    address = r"\(127\.0\.0\.1:\d+\)"
    values = rf"number of clones is 2 on worker 0 {address} and 1 on worker 1 {address}\."
    first, second = (re.search(values, output) for output in outcome.outputs)
    assert first and second and first[0] == second[0]


@of(
    alone,
    """
def act():
    if index == 1:
        model.stop_training = True

fit()
print("steps:", model.optimizer.iterations.numpy(), flush=True)
time.sleep(10 * index)
""",
)
def test_stop_of_one_worker_stops_all_at_one_step_and_they_may_end_far_apart(outcome):
    assert outcome.codes == [0, 0]
    first, second = (re.findall(r"steps: (\d+)", output) for output in outcome.outputs)
    assert first == second
    assert 4 <= int(first[0]) <= 6
    assert "ends because" not in "".join(outcome.outputs)


@of(
    launched,
    """
def act():
    if index == 0 and os.environ["KERASDIST_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)  # The other ends with 138 at once.

fit(num_steps=10)
""",
    "--max-restarts=1",
)
def test_killed_worker_is_the_root_cause_and_the_restarted_cluster_finishes(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [0]
    assert re.search(r"\nworker 0 was ended by a signal: Killed \(exit code 137\) after", output)
    assert "\n--- restart 1 of 1 ---\n" in output
    assert "All tasks done" in output.splitlines()[-1]


@of(launched, "fit(num_steps=10, epochs=1 if index == 0 else 1000)")
def test_worker_that_is_done_early_does_not_leave_the_other_waiting(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [138]
    assert outcome.secs < 30
    assert names_lost(output, survivor=1, lost=0)
    assert output.rstrip().endswith(
        "the first to fail; ended before it without an error: worker 0."
    )


SILENT = (
    "Error reported from /job:worker/task:{0}: The following tasks are unhealthy (stopped sending "
    "heartbeats):\n/job:worker/replica:0/task:{0}\nThe tasks have crashed."
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (tf.errors.UnavailableError(None, None, SILENT.format(1)), "worker 1 (b:2) gave no sign"),
        (tf.errors.UnavailableError(None, None, SILENT.format(0)), "the others have given it up"),
        # Names this worker alone, as every error of a graph may.
        (tf.errors.UnavailableError(None, None, "/job:worker/replica:0/task:0/device:CPU:0"), ""),
        # Names a peer, but is a mistake in the program.
        (tf.errors.InvalidArgumentError(None, None, "/job:worker/replica:0/task:1: shapes"), ""),
        (ValueError("/job:worker/replica:0/task:1"), ""),
    ],
)
def test_cause_is_a_peer_only_where_the_error_says_so(error, cause):
    cluster = Cluster(jobs={"worker": ["a:1", "b:2"]}, task=Task("worker", 0))

    found = peer_failure.cause_of(error, cluster)

    assert found.startswith(cause) and bool(found) == bool(cause)
