"""A task whose log cannot be written ends all the same; who ends why is in tests/cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.step_watch import StepWatch
from tests.cases import exhaustive
from tests.unwritable import FullDisk

CLUSTER = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", 1))
LOST = peer_failure.lost("worker 0 (a:1) is gone.")


def end_by_hook():
    peer_failure.handle(CLUSTER, tell=lambda cause: None)
    sys.excepthook(type(LOST), LOST, None)


def end_by_watch(is_late):
    StepWatch(CLUSTER, limit_secs=1)._end_process("no step has ended.", is_late)


@pytest.mark.parametrize(
    ("end", "arguments", "exit_code"),
    [
        (end_by_hook, (), 138),
        (peer_failure.end, ("worker 0 (a:1) is gone.", CLUSTER), 138),
        (end_by_watch, (False,), 138),
        (end_by_watch, (True,), 1),
    ],
)
def test_a_full_disk_keeps_no_process_from_ending(monkeypatch, end, arguments, exit_code):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(peer_failure, "tell_others", lambda cause: None)
    monkeypatch.setattr(sys, "stdout", FullDisk())
    monkeypatch.setattr(sys, "stderr", FullDisk())
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=f"^{exit_code}$"):
        end(*arguments)


@pytest.mark.processes
def test_a_start_has_its_limit_though_nobody_reads_the_log(monkeypatch):
    monkeypatch.setattr(peer_failure, "Popen", without_reader)
    program = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program]) as task:
        monkeypatch.setattr(os, "getpid", lambda: task.pid)
        limit = peer_failure.StartLimit(CLUSTER, 0.1)
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
        limit: Any = peer_failure.StartLimit(CLUSTER, 60.0)
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
