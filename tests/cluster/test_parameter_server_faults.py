"""What stock `fit` does over parameter servers when a task is killed or halted: real processes."""

import functools
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from kerasdist import testing

NUM_AT_ONCE = 2

PROGRAM = """
import os, signal, sys, time
from pathlib import Path

import keras
import numpy as np

import kerasdist

cluster = kerasdist.Cluster.from_env()
folder = Path(os.environ["KERASDIST_TEST_FOLDER"])
(folder / str(cluster.task)).write_text(str(os.getpid()))
strategy = kerasdist.make_strategy(heartbeat_timeout_secs=5, start_timeout_secs=60)


class Act(keras.callbacks.Callback):
    is_due = True

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        if batch >= 20 and self.is_due:
            self.is_due = False
            act()


def kill(task, number=signal.SIGKILL):
    pid = int((folder / task).read_text())
    os.kill(pid, number)
    print(f"acts at {time.time()}", flush=True)


with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((4 * 300, 2), "float32"), np.ones((4 * 300, 1), "float32")
ACT
model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Act()])
print(f"steps {int(model.optimizer.iterations.numpy())}", flush=True)
print(f"ended at {time.time()}", flush=True)
"""
FAULTS = {
    "a killed worker": "def act(): kill('worker 1')",
    "a halted worker": "def act(): kill('worker 1', signal.SIGSTOP)",
    "a killed ps": "def act(): kill('ps 0')",
    "a halted ps": "def act(): kill('ps 0', signal.SIGSTOP)",
}


def run(fault: str) -> list:
    with tempfile.TemporaryDirectory() as folder:
        program = f"import os; os.environ['KERASDIST_TEST_FOLDER'] = {folder!r}\n"
        program += PROGRAM.replace("ACT", FAULTS[fault])
        # A launcher that sees the end of the ps would stop the chief before it has noticed.
        return testing.run_cluster(
            program,
            num_workers=2,
            num_ps=1,
            timeout_secs=150,
            stop_on_failure=fault != "a killed ps",
        )


@functools.cache
def outcomes() -> dict:
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        return dict(zip(FAULTS, pool.map(run, FAULTS), strict=True))


def chief_of(fault: str) -> testing.TaskOutput:
    return outcomes()[fault][0]


def secs(output: str) -> float:
    """Returns the seconds between the fault and the end of the training."""
    acted, ended = (number_after(f"{word} at", output) for word in ("acts", "ended"))
    return ended - acted


def number_after(words: str, output: str) -> float:
    return float(output.rpartition(words)[2].split()[0])


@pytest.mark.parametrize("fault", ["a killed worker", "a halted worker"])
def test_training_goes_on_without_a_worker(fault):
    chief = chief_of(fault)

    assert chief.returncode == 0, chief.output[-4000:]
    assert 600 <= number_after("steps", chief.output) < 700
    assert secs(chief.output) < 60


def test_lost_worker_is_named_in_one_line():
    lines = chief_of("a killed worker").output.splitlines()

    (line,) = [line for line in lines if "worker 1" in line or "worker/replica:0/task:1" in line]
    assert re.fullmatch(
        r"worker 1 \(127\.0\.0\.1:\d+\) is lost: its steps go to the others, "
        "until it is there again\\.",
        line,
    )


def test_halted_worker_is_named():
    assert re.search(
        r"worker 1 \(127\.0\.0\.1:\d+\) gives no sign of life: its steps go to the others\.",
        chief_of("a halted worker").output,
    )


@pytest.mark.parametrize("fault", ["a killed ps", "a halted ps"])
def test_lost_parameter_server_ends_the_chief(fault):
    chief = chief_of(fault)

    assert chief.returncode == 138, chief.output[-4000:]
    assert re.search(
        r"chief 0 \(127\.0\.0\.1:\d+\) ends because ps 0 \(127\.0\.0\.1:\d+\) ", chief.output
    )
    assert "steps" not in chief.output.partition("acts at")[0]
