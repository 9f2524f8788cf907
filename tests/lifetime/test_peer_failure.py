"""A task whose log cannot be written ends all the same; who ends why is in tests/cluster."""

import os
import sys
import threading

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
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(peer_failure, "tell_others", lambda cause: None)
    monkeypatch.setattr(sys, "stdout", FullDisk())
    monkeypatch.setattr(sys, "stderr", FullDisk())
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=f"^{exit_code}$"):
        end(*arguments)


def test_a_task_that_ends_by_itself_says_nothing_of_a_peer(monkeypatch, capsys):
    """Its own steps fail with what one of its threads has told the others."""
    told = []
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=r"^1$"):
        peer_failure.end_by_itself("its data has ended.", CLUSTER, told.append)
    said = capsys.readouterr()
    peer_failure.handle(CLUSTER, tell=told.append)
    error = peer_failure.lost(told[0])
    with pytest.raises(SystemExit, match=r"^1$"):
        sys.excepthook(type(error), error, None)

    assert "worker 1 ends because its data has ended." in said.out + said.err
    assert (told[1:], capsys.readouterr()) == ([], ("", ""))


def test_a_launch_with_a_range_of_workers_goes_on_by_itself(monkeypatch):
    def remedy():
        return peer_failure.message("worker 0 is gone.", CLUSTER).partition("did nothing wrong. ")[
            2
        ]

    assert remedy() == "Start the whole job again."
    monkeypatch.setenv("KERASDIST_WORKERS", "1:4")
    assert remedy() == "The launch starts those that are left."
