"""What the chief does about silent tasks, by a clock that the test moves."""

import threading
import time
import types
from typing import Any

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import heartbeat_loss, peer_failure
from kerasdist.lifetime.worker_watch import WorkerWatch
from kerasdist.private import coordinator_adapter

# 192.0.2.0/24 is kept for examples: none of it is this machine, whose processes might be killed.
WORKERS = ["192.0.2.1:1", "192.0.2.2:1"]
PS = "192.0.2.3:1"
CLUSTER = Cluster(
    jobs={"chief": ["192.0.2.4:1"], "worker": WORKERS, "ps": [PS]}, task=Task("chief", 0)
)
ZERO, ONE = Task("worker", 0), Task("worker", 1)


@pytest.fixture
def reports(monkeypatch):
    """What the coordinator is to call when a worker is lost and when it is back."""
    functions = {}
    monkeypatch.setattr(
        coordinator_adapter,
        "report_lost_workers",
        lambda coordinator, **given: functions.update(given),
    )
    return functions


@pytest.fixture
def make_watch(clock, halted, reports):
    """Makes a watch, whose guard sleeps for ever unless it gets a `sleep`."""

    def make(cluster=CLUSTER, sleep=lambda secs: threading.Event().wait()):
        coordinator: Any = types.SimpleNamespace(done=lambda: None)
        return WorkerWatch(
            cluster, coordinator, silent_secs=5, no_worker_secs=30, clock=clock, sleep=sleep
        )

    return make


def look_for(secs, watch, clock):
    """Asks for silent workers every second, as waiting for a result does."""
    for _ in range(secs):
        watch.silent_workers()
        clock.sleep(1)
    return watch.silent_workers()


def test_lost_worker_and_its_return_are_a_line_each(make_watch, reports, capsys):
    watch = make_watch()
    assert not watch.has_lost
    reports["on_lost"](1)
    reports["on_back"](1)

    assert watch.has_lost
    assert capsys.readouterr().err.splitlines() == [
        "worker 1 (192.0.2.2:1) is lost: its steps go to the others, until it is there again.",
        "worker 1 (192.0.2.2:1) is back.",
    ]


def test_worker_is_given_up_once_when_it_has_been_silent_for_long(
    make_watch, clock, halted, capsys
):
    watch = make_watch()
    halted.add(WORKERS[1])
    assert look_for(4, watch, clock) == set()
    assert not watch.has_lost

    assert look_for(20, watch, clock) == {ONE}
    assert watch.has_lost
    assert capsys.readouterr().err.splitlines() == [
        "worker 1 (192.0.2.2:1) gives no sign of life: its steps go to the others."
    ]


def test_worker_that_is_lost_is_not_said_to_be_silent_too(
    make_watch, reports, clock, halted, capsys
):
    watch = make_watch()
    reports["on_lost"](1)
    halted.add(WORKERS[1])

    assert look_for(20, watch, clock) == {ONE}
    assert "no sign of life" not in capsys.readouterr().err


def test_worker_whose_name_is_gone_is_given_up_too(make_watch, clock, halted):
    jobs = {**CLUSTER.jobs, "worker": ["gone.invalid:1", WORKERS[1]]}
    halted.add("gone.invalid:1")
    watch = make_watch(Cluster(jobs=jobs, task=CLUSTER.task))

    assert look_for(6, watch, clock) == {ZERO}


def test_worker_that_answers_again_is_given_up_no_longer(make_watch, clock, halted):
    watch = make_watch()
    halted.add(WORKERS[1])
    assert look_for(6, watch, clock) == {ONE}
    halted.clear()

    assert look_for(2, watch, clock) == set()


def test_workers_are_not_asked_more_than_every_two_seconds(make_watch, clock, monkeypatch):
    asked = []
    monkeypatch.setattr(heartbeat_loss, "find_problem", lambda address: asked.append(address) or "")
    watch = make_watch()
    for _ in range(9):
        watch.silent_workers()
        clock.sleep(0.5)

    assert sorted(asked) == sorted(WORKERS * 3)


def test_without_workers_it_waits_says_so_and_gives_up(make_watch, clock, halted, capsys):
    watch = make_watch()
    halted.update(WORKERS)
    assert look_for(30, watch, clock) == {ZERO, ONE}
    names = "worker 0 (192.0.2.1:1), worker 1 (192.0.2.2:1)"
    waits = [line for line in capsys.readouterr().err.splitlines() if "Waiting" in line]
    assert waits == [
        f"Waiting for a worker: {names}, 11 s of 30 s.",
        f"Waiting for a worker: {names}, 22 s of 30 s.",
    ]

    clock.sleep(1)
    with pytest.raises(tf.errors.UnavailableError, match="no worker is left, for 30 s") as error:
        watch.silent_workers()
    assert peer_failure.cause_of(error.value, CLUSTER) == "no worker is left, for 30 s."


def test_a_new_function_waits_until_a_halted_worker_is_given_up_or_goes_on(
    make_watch, clock, halted
):
    main = threading.current_thread()

    def sleep(secs):
        is_guard = threading.current_thread() is not main
        threading.Event().wait() if is_guard else clock.sleep(secs)

    watch = make_watch(sleep=sleep)
    halted.add(WORKERS[1])
    watch.wait_for_halted_workers()

    assert watch.silent_workers() == {ONE}


def test_a_new_function_does_not_wait_for_a_worker_that_is_gone(make_watch, clock, monkeypatch):
    monkeypatch.setattr(heartbeat_loss, "find_problem", lambda address: "nobody listens there")
    watch = make_watch()
    before = clock()
    watch.wait_for_halted_workers()

    assert clock() == before


def test_one_worker_is_enough(make_watch, clock, halted):
    halted.add(WORKERS[0])

    assert look_for(40, make_watch(), clock) == {ZERO}


class Result:
    """What the coordinator promises: it is there from some look on."""

    def __init__(self, clock, value, num_looks):
        self.clock = clock
        self.value = value
        self.num_looks = num_looks

    def fetch(self):
        return self.value


@pytest.fixture
def results(clock, monkeypatch):
    """Makes results that are there after so many looks; each look takes its time."""

    def wait_for(result, secs):
        clock.sleep(secs)
        result.num_looks -= 1
        return result.num_looks < 0

    monkeypatch.setattr(coordinator_adapter, "wait_for", wait_for)
    return lambda value, num_looks: Result(clock, value, num_looks)


def test_result_is_fetched_when_it_is_there(make_watch, results):
    assert make_watch().fetch(results(7.0, num_looks=3), again=pytest.fail) == 7.0


def test_what_runs_on_a_worker_that_is_given_up_is_scheduled_once_more(make_watch, results, halted):
    halted.add(WORKERS[0])
    again = [results("again", num_looks=3)]

    # `pop` fails where it is called twice.
    assert make_watch().fetch(results("never", num_looks=1000), again=again.pop) == "again"


@pytest.mark.parametrize(("worker", "is_lost"), [(None, False), (1, False), (0, True)])
def test_what_runs_once_is_lost_with_a_worker_that_is_given_up(
    make_watch, results, halted, worker, is_lost
):
    halted.add(WORKERS[0])
    attempt = coordinator_adapter.Attempt()
    attempt.worker = worker
    result = make_watch().fetch_once(results("there", num_looks=30), attempt)

    assert attempt.is_lost == is_lost
    assert result == (None if is_lost else "there")


def test_what_failed_elsewhere_is_raised_while_waiting(make_watch, results, monkeypatch):
    watch = make_watch()
    monkeypatch.setattr(watch._coordinator, "done", lambda: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        watch.fetch(results("never", num_looks=1000))


class Nights:
    """Some sleeps of the guard's thread, from when they may begin; then it sleeps for ever."""

    def __init__(self, clock, number):
        self.may_begin = threading.Event()
        self.are_over = threading.Event()
        self._clock = clock
        self._number = number

    def sleep(self, secs):
        self.may_begin.wait()
        if not self._number:
            self.are_over.set()
            threading.Event().wait()
        self._number -= 1
        self._clock.sleep(secs)

    def pass_by(self):
        self.may_begin.set()
        assert self.are_over.wait(timeout=10)


@pytest.fixture
def causes(monkeypatch):
    """With what the process would have ended."""
    found = []
    monkeypatch.setattr(peer_failure, "end", lambda cause, cluster: found.append(cause))
    return found


# Seen to be silent after 2 s, so for 5 s and more at 8 s.
@pytest.mark.parametrize(("num_nights", "ends"), [(3, False), (4, True)])
def test_ps_that_is_silent_for_long_ends_the_process(
    make_watch, clock, halted, causes, num_nights, ends
):
    nights = Nights(clock, num_nights)
    halted.add(PS)
    with make_watch(sleep=nights.sleep).waiting():
        nights.pass_by()

    assert causes == ["ps 0 (192.0.2.3:1) gives no sign of life."] * ends


def test_guard_leaves_the_process_alone_while_the_ps_answers(make_watch, clock, halted, causes):
    nights = Nights(clock, 20)
    halted.update(WORKERS)
    with make_watch(sleep=nights.sleep).waiting():
        nights.pass_by()

    assert not causes


def test_guard_asks_the_workers_alone_while_nobody_waits(make_watch, clock, halted, monkeypatch):
    asked = []
    monkeypatch.setattr(heartbeat_loss, "find_problem", lambda address: asked.append(address) or "")
    nights = Nights(clock, 20)
    watch = make_watch(sleep=nights.sleep)
    with watch.waiting():
        pass
    nights.pass_by()

    assert set(asked) == set(WORKERS)


def test_guard_gives_up_a_worker_while_the_main_thread_is_in_tensorflow(
    make_watch, clock, halted, capsys
):
    nights = Nights(clock, 5)
    halted.add(WORKERS[1])
    watch = make_watch(sleep=nights.sleep)
    nights.pass_by()

    assert watch.awaited == ONE
    assert "worker 1 (192.0.2.2:1) gives no sign of life" in capsys.readouterr().err


class SlowTask(Task):
    """One that gives way to other threads whenever it is put into a set or a dict."""

    def __hash__(self):
        time.sleep(0)
        return hash((self.job, self.index))


class SlowCluster(Cluster):
    """A large one of such tasks."""

    @property
    def addresses(self):
        tasks = [SlowTask(job, index) for job in ("worker", "ps") for index in range(20)]
        return {task: f"192.0.2.1:{port}" for port, task in enumerate(tasks)}


def test_guard_looks_while_the_main_thread_does(make_watch, clock, halted, causes):
    nights = Nights(clock, 40)
    half = {f"192.0.2.1:{port}" for port in range(0, 40, 2)}

    def sleep(secs):
        halted.symmetric_difference_update(half)
        nights.sleep(secs)

    watch = make_watch(SlowCluster(jobs=CLUSTER.jobs, task=CLUSTER.task), sleep=sleep)
    with watch.waiting():
        nights.may_begin.set()
        while not nights.are_over.is_set():
            watch.silent_workers()

    assert not causes
