"""How long workers wait for each other's notices, by a clock that the test moves."""

import math

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import key_value_store
from kerasdist.private import runtime
from tests.clock import Clock

CLUSTER = Cluster(jobs={"worker": ["a:1", "b:1", "c:1"]}, task=Task("worker", 1))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def posted_at(monkeypatch, clock):
    """When what was posted, of TensorFlow's coordination service."""
    times = {}

    def is_posted(key, *, secs):
        if times.get(key, math.inf) <= clock():
            return True
        clock.sleep(secs)
        return False

    monkeypatch.setattr(runtime, "post", lambda key: times.setdefault(key, clock()))
    monkeypatch.setattr(runtime, "is_posted", is_posted)
    return times


def test_notice_is_there_once_it_is_posted(clock, posted_at):
    key_value_store.post("it begins")

    assert key_value_store.is_posted("it begins", timeout_secs=0, clock=clock)
    assert not key_value_store.is_posted("it ends", timeout_secs=0, clock=clock)


def test_notice_is_waited_for(clock, posted_at):
    posted_at["kerasdist: it ends"] = clock() + 7

    assert key_value_store.is_posted("it ends", timeout_secs=10, clock=clock)
    assert clock() == pytest.approx(1007, abs=0.5)


def test_text_is_waited_for_and_read(clock, posted_at, monkeypatch):
    posted_at["kerasdist: it ends"] = clock() + 7
    read = iter(["", "done"])  # The service may be slow.
    monkeypatch.setattr(runtime, "read", lambda key, *, secs: next(read))

    assert key_value_store.wait_for_text("it ends", timeout_secs=10, clock=clock) == "done"
    assert clock() == pytest.approx(1007, abs=0.5)
    assert key_value_store.wait_for_text("it begins", timeout_secs=10, clock=clock) == ""


def test_wait_for_a_text_that_never_arrives_has_an_end(clock, posted_at, monkeypatch):
    posted_at["kerasdist: it ends"] = clock()

    def read(key, *, secs):
        clock.sleep(secs)
        return ""

    monkeypatch.setattr(runtime, "read", read)

    assert key_value_store.wait_for_text("it ends", timeout_secs=10, clock=clock) == ""
    assert clock() == pytest.approx(1010, abs=0.5)


def test_wait_for_a_notice_has_an_end(clock, posted_at):
    posted_at["kerasdist: it ends"] = clock() + 11

    assert not key_value_store.is_posted("it ends", timeout_secs=10, clock=clock)
    assert clock() == pytest.approx(1010, abs=0.5)


def test_all_workers_are_waited_for(clock, posted_at):
    posted_at |= {"kerasdist: start of worker 0": 1003.0, "kerasdist: start of worker 2": 1005.0}
    key_value_store.wait_for_all(CLUSTER, "start", timeout_secs=10, clock=clock)

    assert posted_at["kerasdist: start of worker 1"] == 1000
    assert clock() == pytest.approx(1005, abs=0.5)


def test_worker_that_does_not_come_is_named(clock, posted_at):
    posted_at["kerasdist: start of worker 0"] = 1008.0
    says = r"worker 1 waited 10 s at start for worker 2 \(c:1\), which has not got there"
    with pytest.raises(TimeoutError, match=says):
        key_value_store.wait_for_all(CLUSTER, "start", timeout_secs=10, clock=clock)

    # For both workers together.
    assert clock() == pytest.approx(1010, abs=0.5)
