"""Questions of a script about its tasks, where there is no cluster yet."""

import json
import socket
import subprocess
import sys

import pytest

import kerasdist
from kerasdist import testing
from kerasdist.lifetime import key_value_store
from kerasdist.preflight import ClusterStartError
from kerasdist.support import memory

pytestmark = pytest.mark.processes


def test_a_process_alone_is_the_chief_and_waits_for_nobody():
    program = "import kerasdist, sys; kerasdist.barrier(); print(kerasdist.is_chief())"
    program += "; print('tensorflow' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert result.stdout.split() == ["True", "False"]


def test_before_make_strategy_the_cluster_of_the_environment_counts(monkeypatch):
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))

    assert not kerasdist.is_chief()


def test_a_rank_says_who_is_the_chief_and_nobody_is_waited_for(monkeypatch):
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "1"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)

    assert not kerasdist.is_chief()


def meet_twice():
    kerasdist.barrier("first")
    kerasdist.barrier("second")
    return kerasdist.is_chief()


def test_workers_meet_before_make_strategy():
    results = testing.run_cluster(meet_twice, num_workers=2)

    assert [result.value for result in results] == [True, False]


def test_a_barrier_without_the_others_names_its_own_limit(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    config = {"cluster": {"worker": [address, "127.0.0.1:1"]}}
    config["task"] = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    with pytest.raises(ClusterStartError, match=r"`barrier\(timeout_secs=...\)` waits longer"):
        kerasdist.barrier("download", timeout_secs=0.1)


def test_a_barrier_waited_for_in_vain_is_waited_for_again(monkeypatch):
    waited_at = []

    def wait(cluster, notice, *, timeout_secs):
        waited_at.append(notice)
        if len(waited_at) == 1:
            raise TimeoutError

    monkeypatch.setattr(key_value_store, "wait_for_all", wait)
    cluster = kerasdist.Cluster.from_hosts(worker_hosts="a:1,b:1")
    monkeypatch.setattr(memory.PROCESS, "cluster", cluster)

    with pytest.raises(TimeoutError):
        kerasdist.barrier("again")
    kerasdist.barrier("again")
    kerasdist.barrier("again")

    assert waited_at == [f"barrier 'again' number {number}" for number in (1, 1, 2)]


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), ("5", TypeError)])
def test_a_barrier_has_a_time_limit(limit, error):
    with pytest.raises(error, match=f"timeout_secs={limit!r}"):
        kerasdist.barrier(timeout_secs=limit)


def test_a_strategy_of_this_task_alone_changes_nothing_about_the_job(monkeypatch):
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    kerasdist.tasks.joined(kerasdist.Cluster.from_env(), None)
    kerasdist.tasks.joined(kerasdist.Cluster.local(), None)

    assert not kerasdist.is_chief()
