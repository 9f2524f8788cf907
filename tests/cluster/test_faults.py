"""What happens when a worker dies, halts, fails or ends alone: real processes, real TensorFlow."""

import os
import re
import sys
import threading

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from tests.cluster import outcomes
from tests.cluster.outcomes import of
from tests.network import isolated_only

nothing_is_left_behind = outcomes.nothing_is_left_behind
started = outcomes.started
outcome = outcomes.outcome

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


def alone(source: str, *, num_workers: int = 2):
    """Runs workers that nobody stops."""
    return outcomes.alone(PROGRAM + source, num_workers=num_workers)


def launched(source: str, *options: str):
    """Runs two workers by `python -m kerasdist launch`."""
    return outcomes.launched(PROGRAM + source, *options)


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
    assert re.search(
        r"\nworker 1 failed with exit code 1 after .*\n  ValueError: my own bug\n", output
    )


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
    assert "worker 0 was halted (SIGSTOP)" in outcome.outputs[0].splitlines()[-2]


@of(
    launched,
    """
def make_model():
    global model
    strategy = kerasdist.make_strategy(start_timeout_secs=60, step_timeout_secs=16)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")


def act():
    if index == 1:
        wait_for_a_lock()


def wait_for_a_lock():
    time.sleep(100)

fit()
""",
)
def test_late_worker_is_named_and_ends_the_job_after_the_limit(outcome):
    [output] = outcome.outputs
    late = r"worker 1 \(127\.0\.0\.1:\d+\) is late: between two steps, in a callback"
    assert outcome.codes == [1]
    assert outcome.secs < 60
    assert re.search(rf"worker 0 \| No step has ended for 1\d s; .* {late}", output)
    # Where it is stands in its log.
    assert re.search(r"worker 1 \| +File .*, in wait_for_a_lock\n", output)
    assert re.search(r"worker 0 \| .* failed: no step has ended for 16 s\. worker 1 ", output)
    assert re.search(rf"\nworker 1 failed with exit code 1 .*\n  error: .*{late}", output)


@isolated_only
@of(
    alone,
    """
def act():
    import fcntl, socket, struct

    if index == 1:
        # Takes the one interface of the cluster's network down.
        name, get_flags, set_flags = b"lo", 0x8913, 0x8914
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh14x", name, 0))
            _, flags = struct.unpack("16sh14x", request)
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", name, flags & ~1))

fit()
""",
)
def test_workers_that_are_cut_off_from_each_other_end(outcome):
    assert outcome.codes == [138, 138]
    assert outcome.secs < 60
    for index, output in enumerate(outcome.outputs):
        assert f"worker {index} (127.0.0.1:" in output
        assert "ends because" in output


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


IN_THREAD = """
import threading

def fit_in_thread():  # As Ray and executors do, which keep an error.
    try:
        fit()
    except BaseException as error:
        if index == 1:
            raise

threading.Thread(target=fit_in_thread).start()
time.sleep(60)
"""


@of(
    alone,
    """
def act():
    if index == 1:
        raise ValueError("my own bug")
"""
    + IN_THREAD,
)
def test_error_of_a_training_in_a_thread_ends_both_workers(outcome):
    assert outcome.codes == [138, 1]
    assert outcome.secs < 30
    assert names_lost(outcome.outputs[0], survivor=0, lost=1)
    assert "failed: ValueError: my own bug" in outcome.outputs[0]
    assert "ValueError: my own bug" in outcome.outputs[1]


@of(
    alone,
    """
def act():
    if index == 0:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    + IN_THREAD,
)
def test_term_ends_a_worker_that_trains_in_a_thread(outcome):
    assert outcome.codes == [143, 138]
    assert outcome.secs < 10
    assert names_lost(outcome.outputs[1], survivor=1, lost=0)


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


@pytest.mark.exhaustive
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
    assert outcome.codes == [138]
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


@of(
    launched,
    """
fit(num_steps=10)
if index == 1:
    model.fit(np.ones((40, 2)), np.ones((40, 1)), batch_size=4, verbose=0)
""",
)
def test_worker_that_is_done_early_does_not_leave_the_other_waiting(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [138]
    assert outcome.secs < 30
    assert names_lost(output, survivor=1, lost=0)
    assert "the first to fail; ended before it without an error: worker 0.\n" in output


EVALUATE = """
fit(num_steps=10)
if index == 0:
    model.evaluate(np.ones((40, 2)), np.ones((40, 1)), verbose=0)
"""


@of(launched, EVALUATE)
def test_chief_that_evaluates_alone_is_told_that_its_program_is_wrong(outcome):
    [output] = outcome.outputs
    assert outcome.codes == [1]
    assert outcome.secs < 30
    assert re.search(
        r"\nworker 0 failed with exit code 1 .*\n  error: worker 0 ends because the program of "
        r"worker 1 is over, and this one waits for it in <string>, line \d+\. Every worker must ",
        output,
    )


@of(
    alone,
    """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

def act():
    if index == 1:
        os.kill(os.getpid(), signal.SIGTERM)

fit()
""",
)
def test_worker_that_is_told_to_end_in_the_middle_is_a_peer_that_failed(outcome):
    assert outcome.codes == [138, 143]
    assert names_lost(outcome.outputs[0], survivor=0, lost=1)


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


def test_an_error_is_reported_once_however_many_strategies_were_made(monkeypatch):
    cluster = Cluster(jobs={"worker": ["a:1", "b:2"]}, task=Task("worker", 0))
    printed, told = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    for _ in range(3):
        peer_failure.handle(cluster, tell=told.append)
    sys.excepthook(ValueError, ValueError("no data"), None)

    assert len(printed) == 1
    assert told == ["worker 0 (a:1) failed: ValueError: no data"]


def test_an_error_of_a_thread_that_does_not_train_ends_nothing(monkeypatch):
    cluster = Cluster(jobs={"worker": ["a:1", "b:2"]}, task=Task("worker", 0))
    printed, told = [], []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", printed.append)
    peer_failure.handle(cluster, tell=told.append)

    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

    assert (len(printed), told) == (1, [])


def test_an_error_of_a_forked_child_is_not_one_of_the_task(monkeypatch):
    cluster = Cluster(jobs={"worker": ["a:1", "b:2"]}, task=Task("worker", 0))
    printed, told = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    peer_failure.handle(cluster, tell=told.append)
    monkeypatch.setattr(os, "getpid", lambda: -1)

    sys.excepthook(ValueError, ValueError("no data"), None)

    assert (len(printed), told) == (1, [])
