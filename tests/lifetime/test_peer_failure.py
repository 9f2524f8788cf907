"""A task whose log cannot be written ends all the same; who ends why is in tests/cluster."""

import os
import sys

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.step_watch import StepWatch
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
