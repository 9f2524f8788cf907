"""What a worker says when its program is over; that the others hear it is in tests/cluster."""

import sys

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import exit_notice, key_value_store, process_end
from kerasdist.lifetime.step_watch import StepWatch

JOBS = {"worker": ["a:1", "b:1"]}


@pytest.fixture
def posted(monkeypatch):
    """What the workers can read of each other, by its name."""
    notes, ends = {}, []
    monkeypatch.setattr(key_value_store, "replace", notes.__setitem__)
    monkeypatch.setattr(key_value_store, "read", lambda name: notes.get(name, ""))
    monkeypatch.setattr(process_end, "at_end", ends.append)
    monkeypatch.delattr(sys, "last_value", raising=False)
    return ends


def said_after(ends, *, index=1, is_due=True) -> set[Task]:
    cluster = Cluster(jobs=JOBS, task=Task("worker", index))
    exit_notice.ExitNotice(cluster, is_due=lambda: is_due)
    for end in ends:
        end()
    return exit_notice.given_by(cluster.addresses, cluster)


def test_a_worker_says_that_its_program_is_over(posted):
    assert said_after(posted) == {Task("worker", 1)}


def test_it_says_nothing_after_an_error(posted, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ValueError("no data"), raising=False)

    assert not said_after(posted)


@pytest.mark.parametrize("arguments", [{"is_due": False}, {"index": 0}])
def test_one_that_was_told_to_end_says_nothing_nor_does_the_chief(posted, arguments):
    assert not said_after(posted, **arguments)


def test_beside_parameter_servers_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(key_value_store, "read", None)
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    cluster = Cluster(jobs=jobs, task=Task("chief", 0))

    assert not exit_notice.given_by(cluster.addresses, cluster)


@pytest.mark.parametrize("end", [None, SystemExit, KeyboardInterrupt])
def test_a_call_that_was_left_in_its_middle_is_known(end):
    watch = StepWatch(Cluster(jobs=JOBS, task=Task("worker", 1)), limit_secs=60)
    try:
        with watch.active():
            if end:
                raise end
    except BaseException as error:
        assert type(error) is end

    assert watch.was_left == (end is not None)


def test_the_line_of_the_program_is_named():
    with pytest.raises(ValueError) as raised:
        Cluster.from_hosts(worker_hosts="no port")

    told = exit_notice.describe({Task("worker", 2), Task("worker", 1)}, raised.tb)

    assert told.startswith("the program of worker 1, worker 2 is over, and this one waits for it ")
    assert '`Cluster.from_hosts(worker_hosts="no port")` (test_exit_notice.py, line ' in told
