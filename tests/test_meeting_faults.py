"""What goes wrong at the meeting: strangers, processes of other runs, and some that are gone.

Each process is a thread here, or a bare socket. Clocks run ten times as fast.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerasdist import ClusterStartError
from kerasdist.cluster import meeting_guest, participant
from kerasdist.cluster.held_port import held_port
from kerasdist.cluster.meeting_guest import Guest
from kerasdist.cluster.meeting_host import Host
from kerasdist.cluster.told import Told
from kerasdist.messages.patience import Patience
from tests.test_preflight import free_addresses

ROOT = str(Path(__file__).parents[1])

pytestmark = pytest.mark.timeout(60)


def clock():
    return 10 * time.monotonic()


@pytest.fixture
def address():
    return free_addresses(1)[0]


@pytest.fixture
def said():
    return []


@pytest.fixture
def start(address, said):
    """Starts a process of a rank; returns what becomes of it."""
    with ThreadPoolExecutor(8) as pool:

        def start(rank, num_processes=2, *, num_ps=0, timeout_secs=300, at=address):
            def run():
                with held_port(at, rank) as port:
                    told = Told(
                        address=at,
                        rank=rank,
                        num_processes=num_processes,
                        num_ps=num_ps,
                        port=port,
                    )
                    patience = Patience(timeout_secs, report=said.append, clock=clock)
                    return (Guest if rank else Host)(told, patience, clock=clock).meet()

            return pool.submit(run)

        yield start


def called(address):
    """A socket that has called an address."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), timeout=20)
        time.sleep(0.01)


def joining(address, rank, num_processes=2, **said):
    """A socket that says what a process would."""
    caller = called(address)
    content = {"num_ps": 0, "address": "10.0.0.2:12", "called": "node-0", "run": {}, **said}
    message = {"kerasdist": "join", "rank": rank, "num_processes": num_processes, **content}
    caller.sendall(json.dumps(message).encode() + b"\n")
    return caller


def first_line(caller):
    return json.loads(caller.makefile().readline())


def test_who_comes_late_hears_that_the_job_runs(start):
    first, second = start(0), start(1)
    found = first.result()
    late, of_another_size = start(1, timeout_secs=5), start(1, 3, timeout_secs=5)

    assert second.result() == found
    with pytest.raises(ClusterStartError, match="runs there already and takes nobody else in"):
        late.result()
    with pytest.raises(ClusterStartError, match="a job of 2 processes runs there already"):
        of_another_size.result()


def test_a_worker_of_parameter_servers_that_is_started_again_gets_its_cluster_again(start):
    first, *_ = results = [start(rank, 4, num_ps=1) for rank in range(4)]
    found = first.result()
    assert all(each.result() == found for each in results)

    assert start(2, 4, num_ps=1).result() == found
    with pytest.raises(ClusterStartError, match="takes nobody else in"):
        start(3, 4, num_ps=1, timeout_secs=5).result()


def test_a_second_process_of_a_rank_ends_soon_where_the_first_is_on_its_machine(start):
    first, second = start(0), start(1)
    [_, place] = first.result()
    second.result()

    # TensorFlow listens there then.
    with (
        socket.create_server(("", int(place.rpartition(":")[2]))),
        pytest.raises(ClusterStartError, match=r"is on this machine, at 127\.0\.0\.1:.*TF_CONFIG"),
    ):
        start(1).result(timeout=20)


def test_a_process_of_another_run_hears_so_and_counts_for_nothing(start, address, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    first = start(0)
    with joining(address, 1, run={"SLURM_JOB_ID": "4"}) as caller:
        told = first_line(caller)
        second = start(1)

        assert first.result() == second.result()
    assert told["kerasdist"] == "declined"
    assert "another run, whose SLURM_JOB_ID is 5, and here 4" in told["reason"]


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        ({"SLURM_JOB_ID": "5", "USER": "me"}, {"SLURM_JOB_ID": "5"}),
        ({"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5"}, {}),
        ({"SLURM_JOB_ID": "5", "KERASDIST_RANK": "1"}, {}),
        ({"KERASDIST_RUN_ID": "a", "KERASDIST_RANK": "1"}, {"KERASDIST_RUN_ID": "a"}),
        (
            {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "1"},
            {"TORCHELASTIC_RUN_ID": "a"},
        ),
    ],
)
def test_what_tells_a_run_from_others(environ, facts):
    assert participant.facts_of_run(environ) == facts


@pytest.mark.parametrize(
    ("mine", "theirs", "is_other"),
    [
        ({"KERASDIST_RUN_ID": "a"}, {"KERASDIST_RUN_ID": "a"}, False),
        ({"KERASDIST_RUN_ID": "a"}, {}, True),
        ({"PMIX_NAMESPACE": "a"}, {"PMIX_NAMESPACE": "b"}, True),
        ({"PMIX_NAMESPACE": "a"}, {}, False),
    ],
)
def test_which_runs_are_others(mine, theirs, is_other):
    assert bool(participant.describe_other_run(mine, theirs)) is is_other


def test_a_process_whose_machine_is_gone_makes_room_for_another_one(start, address):
    first = start(0, 3)
    with joining(address, 1, 3):  # It never says anything again.
        time.sleep(0.6)
        second, third = start(1, 3), start(2, 3)

        assert first.result(timeout=20) == second.result() == third.result()


def test_a_process_that_is_gone_at_the_end_is_not_counted_on(start, address, said):
    first = start(0, 3, timeout_secs=25)
    with joining(address, 1, 3):
        time.sleep(0.6)
        second = start(2, 3, timeout_secs=25)

        with pytest.raises(ClusterStartError, match=r"Only 2 of 3 .* Missing: rank 1") as told:
            first.result()
        with pytest.raises(ClusterStartError) as heard:
            second.result()
    assert str(heard.value) == str(told.value)
    assert any("Waiting for rank 1, 1" in line for line in said)


def test_two_living_processes_of_one_rank_are_an_error_however_far_apart(start):
    first, second = start(0, 3), start(1, 3)
    time.sleep(0.6)
    third = start(1, 3)

    for each in (first, second, third):
        with pytest.raises(ClusterStartError, match="both have rank 1"):
            each.result(timeout=20)


def test_all_hear_of_a_second_process_of_rank_0(start):
    results = start(0, 3), start(1, 3), start(0, 3)

    for each in results:
        with pytest.raises(ClusterStartError, match="both have rank 0"):
            each.result(timeout=20)


def test_who_shares_the_machine_of_rank_0_is_known_under_its_name(start, address):
    first, neighbor = start(0, 3), start(1, 3)
    with joining(address, 2, 3) as caller:
        host, beside, afar = first.result()

        assert first_line(caller)
    assert neighbor.result() == first.result()
    assert (host.partition(":")[0], beside.partition(":")[0]) == ("node-0", "node-0")
    assert (afar, host == beside) == ("10.0.0.2:12", False)


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\0" * 1000 + b"\n",
    b"[" * 10_000 + b"\n",
    b'{"kerasdist": "join", "rank": "1"}\n',
    b'{"kerasdist": "join", "rank": 1e999, "num_processes": 2}\n',
    b'{"kerasdist": "hello", "task": "worker 1"}\n',
    b"half a line",
    b"",
]


def test_strangers_change_nothing(start, address):
    first = start(0)
    with contextlib.ExitStack() as callers:
        for garbage in GARBAGE:
            callers.enter_context(called(address)).sendall(garbage)
        second = start(1)

        assert first.result() == second.result()
        callers.enter_context(called(address)).sendall(GARBAGE[0])
        assert start(1, timeout_secs=5).exception()  # It still answers, and takes nobody in.


def test_a_wrong_secret_is_named_on_both_sides(start, monkeypatch):
    monkeypatch.setenv("KERASDIST_SECRET", "right")
    monkeypatch.setattr(meeting_guest, "from_env", lambda: b"wrong")
    first, second = start(0, timeout_secs=10), start(1, timeout_secs=10)

    with pytest.raises(ClusterStartError, match=r"turned down: from 127\.0\.0\.1: .*secret"):
        first.result()
    with pytest.raises(ClusterStartError, match="secret"):
        second.result()


def test_a_process_of_rank_0_that_is_gone_or_silent_is_called_again(start, address):
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as gone:
        second = start(1)
        gone.accept()[0].close()
        halted, _ = gone.accept()
    with halted:
        first = start(0)

        assert second.result(timeout=20) == first.result()


def test_localhost_is_each_machine_itself(start, address):
    at = f"localhost:{address.rpartition(':')[2]}"

    for rank in (0, 1):
        with pytest.raises(ClusterStartError, match="localhost is each machine itself"):
            start(rank, timeout_secs=2, at=at).result()


def test_the_port_of_rank_0_may_be_another_job_s(start, address):
    with (
        socket.create_server(("", int(address.rpartition(":")[2]))),
        pytest.raises(ClusterStartError, match="is already in use on this machine"),
    ):
        start(0).result()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("calls", "codes", "told"),
    [
        ([(1, 2)], [138], "nothing listens there"),
        ([(0, 3), (1, 3)], [138, 138], "Missing: rank 2"),
        ([(0, 3), (1, 3), (1, 3)], [1, 1, 1], "both have rank 1"),
    ],
)
def test_whom_nobody_meets_is_worth_a_restart_and_a_contradiction_is_not(
    address, calls, codes, told
):
    host, _, port = address.rpartition(":")
    known = {"MASTER_ADDR": host, "MASTER_PORT": port, "PATH": os.environ["PATH"]}
    source = "import kerasdist; kerasdist.Cluster.from_env(timeout_secs=5)"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", source],
            env={**known, "RANK": str(rank), "WORLD_SIZE": str(number), "PYTHONPATH": ROOT},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, number in calls
    ]
    outputs = [process.communicate(timeout=40)[1] for process in processes]

    assert [process.returncode for process in processes] == codes
    for output in outputs:
        assert told in output and "Traceback" in output
