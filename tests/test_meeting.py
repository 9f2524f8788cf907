"""Processes that know one address meet there; each is a thread here."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from kerasdist import ClusterStartError
from kerasdist.cluster import Cluster, Task
from kerasdist.support import memory
from tests.test_preflight import free_addresses

pytestmark = pytest.mark.timeout(60)


def join_all(*calls, **arguments):
    """Returns the cluster or the error of each (rank, num_processes)."""
    (address,) = free_addresses(1)

    def join(rank, num_processes):
        try:
            return Cluster.join(address, rank=rank, num_processes=num_processes, **arguments)
        except (ClusterStartError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(join, *zip(*calls, strict=True)))


def test_each_gets_the_whole_cluster():
    found = join_all((0, 3), (1, 3), (2, 3))

    assert [each.task for each in found] == [Task("worker", rank) for rank in range(3)]
    assert len({tuple(each.jobs["worker"]) for each in found}) == 1
    assert len(set(found[0].jobs["worker"])) == 3


def test_the_last_ranks_are_parameter_servers():
    found = join_all((0, 5), (1, 5), (2, 5), (3, 5), (4, 5), num_ps=2)

    tasks = [Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0), Task("ps", 1)]
    assert [each.task for each in found] == tasks
    assert list(found[0].addresses) == tasks


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (((0, 3), (1, 3), (1, 3)), "both have rank 1"),
        (((0, 3), (1, 3), (2, 4)), "of rank 2, was told num_processes=4, and .* num_processes=3"),
        (((0, 3), (2, 3)), "Only 2 of 3 processes have come .* within 2 s. Missing: rank 1"),
    ],
)
def test_all_hear_what_does_not_fit(calls, told):
    found = join_all(*calls, timeout_secs=2)

    assert len({str(each) for each in found}) == 1
    assert isinstance(found[0], ClusterStartError) and re.search(told, str(found[0]))


def test_a_process_that_nobody_answers_says_whom_it_has_called():
    (found,) = join_all((1, 2), timeout_secs=0.5)

    assert re.search(r"of rank 1, in within 0\.5 s.*nothing listens there", str(found))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"rank": 2, "num_processes": 2}, "`rank` must be less than `num_processes`"),
        ({"rank": -1, "num_processes": 2}, "`rank` must be at least 0"),
        ({"rank": 0, "num_processes": 2, "num_ps": 1}, "need a chief and a worker beside them"),
    ],
)
def test_what_cannot_be_is_said_before_anybody_is_called(arguments, told):
    with pytest.raises(ValueError, match=told):
        Cluster.join("a:1", **arguments)


def test_one_process_is_alone():
    assert Cluster.join("a:1", rank=0, num_processes=1).is_local


def test_what_a_launcher_tells_is_joined_once(monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "met", {})
    host, _, port = free_addresses(1)[0].partition(":")

    def environ(rank):
        numbers = {"RANK": str(rank), "WORLD_SIZE": "2"}
        return {**numbers, "MASTER_ADDR": host, "MASTER_PORT": port}

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(Cluster.from_env, map(environ, range(2)))

    assert (first.task, second.task) == (Task("worker", 0), Task("worker", 1))
    assert Cluster.from_env(environ(1)) is second
