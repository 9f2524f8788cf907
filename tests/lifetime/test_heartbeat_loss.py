"""How long tasks have been silent, by a clock that the test moves."""

import threading
import time

import pytest

from kerasdist.cluster import Task
from kerasdist.lifetime import heartbeat_loss
from kerasdist.lifetime.heartbeat_loss import HeartbeatLoss

ZERO, ONE = Task("worker", 0), Task("worker", 1)


@pytest.fixture
def workers(clock, halted):
    return HeartbeatLoss({ZERO: "a:1", ONE: "b:1"}, clock=clock)


def test_silence_lasts_from_the_first_look_without_an_answer(workers, clock, halted):
    halted.add("b:1")
    for _ in range(3):
        workers.look()
        clock.sleep(2)

    assert workers.tasks(6) == {ONE}
    assert workers.tasks(6.1) == set()


def test_silence_begins_when_the_task_is_called(workers, clock, monkeypatch):
    def find_problem(address):
        clock.sleep(5 if address == "b:1" else 0)
        return "halted" if address == "b:1" else ""

    monkeypatch.setattr(heartbeat_loss, "find_problem", find_problem)
    workers.look()

    assert workers.tasks(5) == {ONE}
    assert workers.tasks(5.1) == set()


def test_answer_ends_the_silence(workers, clock, halted):
    halted.add("b:1")
    workers.look()
    clock.sleep(5)
    halted.clear()
    workers.look()
    assert workers.tasks(0) == set()

    halted.add("b:1")
    workers.look()
    assert workers.tasks(5) == set()


def test_silence_begins_anew_after_a_time_without_looks(workers, clock, halted):
    halted.add("b:1")
    workers.look()
    clock.sleep(60)
    workers.look()

    assert workers.tasks(0) == {ONE}
    assert workers.tasks(1) == set()


def test_all_are_silent_since_the_last_of_them_is(workers, clock, halted):
    assert workers.secs_of_all() == 0
    halted.add("a:1")
    workers.look()
    clock.sleep(5)
    assert workers.secs_of_all() == 0

    halted.add("b:1")
    workers.look()
    clock.sleep(2)
    assert workers.secs_of_all() == 2


class SlowTask(Task):
    """One that gives way to other threads whenever it is put into a set or a dict."""

    def __hash__(self):
        time.sleep(0)
        return hash(self.index)


def test_one_thread_may_ask_while_another_looks(halted):
    servers = HeartbeatLoss({SlowTask("ps", index): f"a:{index}" for index in range(50)})
    halted |= {f"a:{index}" for index in range(0, 50, 2)}
    servers.look()
    is_over = threading.Event()

    def look():
        for _ in range(20):
            halted.symmetric_difference_update(f"a:{index}" for index in range(25))
            servers.look()
        is_over.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not is_over.is_set():
        assert 24 <= len(servers.tasks(0)) <= 25
    thread.join()
