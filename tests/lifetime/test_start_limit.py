"""A process in which TensorFlow does not start ends all the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import start_limit
from kerasdist.lifetime.start_limit import StartLimit
from tests.cases import exhaustive

CLUSTER = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", 1))


@pytest.mark.processes
def test_a_start_has_its_limit_though_nobody_reads_the_log(monkeypatch):
    monkeypatch.setattr(start_limit, "Popen", without_reader)
    program = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program]) as task:
        monkeypatch.setattr(os, "getpid", lambda: task.pid)
        limit = StartLimit(CLUSTER, 0.1)
        limit.__enter__()
        assert task.wait(30) == -signal.SIGUSR1
    limit.__exit__()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, *exhaustive(signal.SIGTERM)])
def test_a_start_that_is_deaf_to_a_signal_ends_with_it(monkeypatch, capfd, number):
    """A terminal and `timeout` send it to all of the group, the watcher included."""
    deaf = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", deaf]) as task:
        monkeypatch.setattr(os, "getpid", lambda: task.pid)
        limit: Any = StartLimit(CLUSTER, 60.0)
        limit.__enter__()
        while not catches_termination(limit._watcher.pid):
            time.sleep(0.01)
        os.kill(limit._watcher.pid, number)
        assert task.wait(30) == -signal.SIGKILL
    limit.__exit__()
    assert "Stopped, while TensorFlow was connecting the cluster." in capfd.readouterr().err


def catches_termination(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def without_reader(command, **arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.Popen(command, stderr=writer, **arguments)
    finally:
        os.close(writer)
