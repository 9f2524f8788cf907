"""What stock `fit` does over parameter servers when a task is killed or halted: real processes."""

import functools
import os
import signal
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerasdist import testing

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
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        if batch == 20:
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
        try:
            return testing.run_cluster(
                program, num_workers=2, num_ps=1, timeout_secs=150, stop_on_failure=False
            )
        finally:
            for path in Path(folder).iterdir():
                _end(int(path.read_text()))


def _end(pid: int):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
