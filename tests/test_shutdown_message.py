"""The chief's last word goes to every task that is there, and waits for none that is not."""

import threading

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import shutdown_message
from kerasdist.lifetime.shutdown_message import ShutdownMessage
from tests.clock import RunningClock

CLUSTER = Cluster(
    jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, task=Task("chief", 0)
)


@pytest.fixture(autouse=True)
def not_at_exit(monkeypatch):
    monkeypatch.setattr(shutdown_message.process_end, "at_end", lambda function: None)


@pytest.fixture
def told(monkeypatch):
    """What tasks have been told; all are there."""
    words = []
    monkeypatch.setattr(shutdown_message, "find_problem", lambda address: "")
    monkeypatch.setattr(shutdown_message, "_tell", lambda *word: words.append(word))
    return words


def test_every_other_task_is_told_the_cause(told):
    ShutdownMessage(CLUSTER).tell("the disk is full")

    assert sorted(told, key=str) == [
        ("grpc://b:1", Task("worker", 0), "the disk is full"),
        ("grpc://c:1", Task("worker", 1), "the disk is full"),
        ("grpc://d:1", Task("ps", 0), "the disk is full"),
    ]


def test_first_cause_counts_though_it_is_heard_late(told, monkeypatch):
    may_hear = threading.Event()
    monkeypatch.setattr(shutdown_message, "find_problem", lambda address: not may_hear.wait())
    word = ShutdownMessage(CLUSTER, clock=RunningClock())
    word.tell("the disk is full")
    word.tell()
    may_hear.set()
    for thread in word._threads:
        thread.join()

    assert {cause for _, _, cause in told} == {"the disk is full"}


def test_task_that_is_gone_is_not_told(told, monkeypatch):
    monkeypatch.setattr(
        shutdown_message, "find_problem", lambda address: "refused" if address == "b:1" else ""
    )
    ShutdownMessage(CLUSTER).tell()

    assert {task for _, task, _ in told} == {Task("worker", 1), Task("ps", 0)}


def test_task_that_ends_meanwhile_is_no_error(told, monkeypatch):
    def fail(*word):
        raise tf.errors.UnavailableError(None, None, "it has ended")

    monkeypatch.setattr(shutdown_message, "_tell", fail)
    ShutdownMessage(CLUSTER).tell()


def test_task_that_is_halted_does_not_delay_the_end(told, monkeypatch):
    ends = threading.Event()
    monkeypatch.setattr(shutdown_message, "find_problem", lambda address: ends.wait() and "halted")
    word = ShutdownMessage(CLUSTER, clock=RunningClock())
    word.tell()  # Returns, though none has heard it.
    assert not told

    ends.set()
