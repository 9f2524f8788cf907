"""The rendezvous of the tasks before TensorFlow starts: real sockets on loopback, no TensorFlow."""

import contextlib
import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.messages import addresses, connections, tensorflow_server
from kerasdist.preflight import ClusterStartError, leader, rendezvous, wait_for_peers
from tests.cases import exhaustive

# A hang is what all of this is against.
pytestmark = pytest.mark.timeout(60)

STARTED = "started"
FACTS = {"keras": "3.15.1", "num_clones": "1", "KERASDIST_RUN_ID": "a"}
WORKER_0, WORKER_1, WORKER_2 = (Task("worker", index) for index in range(3))


def free_addresses(number: int) -> list[str]:
    """Returns addresses whose ports were free a moment ago."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def workers(number: int) -> dict[str, list[str]]:
    return {"worker": free_addresses(number)}


def start(jobs, task, *, facts=FACTS, timeout_secs=20.0, report=lambda line: None) -> Future[str]:
    """Starts one task of a cluster in a thread; the result is STARTED or its error."""
    cluster = Cluster(jobs=jobs, task=task)
    result: Future[str] = Future()

    def run():
        try:
            wait_for_peers(cluster, facts=facts, timeout_secs=timeout_secs, report=report)
            result.set_result(STARTED)
        except ClusterStartError as error:
            result.set_result(str(error))

    threading.Thread(target=run, daemon=True).start()
    return result


def results(*tasks: Future[str]) -> list[str]:
    return [task.result(timeout=30) for task in tasks]


def place_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def wait_until_it_listens(address: str) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(place_of(address), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"Nothing listens at {address}.")


def call_and_send(address: str, data: bytes) -> socket.socket:
    caller = socket.create_connection(place_of(address), timeout=5)
    with contextlib.suppress(OSError):  # It may hang up before all is sent.
        caller.sendall(data)
    return caller


@pytest.mark.parametrize(
    "jobs",
    [
        {"worker": 2},
        {"worker": 4},
        {"chief": 1, "worker": 2},
        {"chief": 1, "worker": 1, "ps": 2},
    ],
)
def test_complete_cluster_starts_and_leaves_its_ports_free(jobs):
    unused = free_addresses(sum(jobs.values()))
    jobs = {job: [unused.pop() for _ in range(number)] for job, number in jobs.items()}
    cluster = Cluster(jobs=jobs, task=Task(next(iter(jobs)), 0))

    assert {*results(*[start(jobs, task) for task in cluster.addresses])} == {STARTED}
    for address in cluster.addresses.values():
        with socket.socket() as server:
            # Even without SO_REUSEADDR, which TensorFlow sets.
            server.bind(("", place_of(address)[1]))


@pytest.mark.parametrize("order", [*exhaustive([0, 1, 2]), [2, 1, 0], *exhaustive([1, 0, 2])])
def test_tasks_may_start_in_any_order(order):
    jobs = workers(3)
    tasks = []
    for index in order:
        tasks.append(start(jobs, Task("worker", index)))
        time.sleep(0.3)

    assert results(*tasks) == [STARTED] * 3


def test_names_and_ipv6_addresses_are_called_too():
    jobs = {"worker": [f"localhost:{place_of(address)[1]}" for address in free_addresses(2)]}
    jobs["worker"][1] = jobs["worker"][1].replace("localhost", "[::1]")

    assert results(start(jobs, WORKER_0), start(jobs, WORKER_1)) == [STARTED] * 2


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster.local(),
        Cluster(jobs={"worker": ["nowhere.invalid:2222"]}, task=WORKER_0),
        Cluster(jobs={"worker": ["nowhere.invalid:2222"]}, task=Task("evaluator", 0)),
    ],
)
def test_who_is_alone_or_beside_the_cluster_does_not_wait(cluster):
    wait_for_peers(cluster, facts=FACTS, timeout_secs=0.1)


def test_timeout_must_be_positive():
    with pytest.raises(ValueError, match="timeout_secs=0"):
        wait_for_peers(Cluster.local(), facts=FACTS, timeout_secs=0)


def test_missing_task_is_named_on_every_task():
    jobs = workers(3)

    told = results(
        start(jobs, WORKER_0, timeout_secs=1.0),
        start(jobs, WORKER_1, timeout_secs=0.9),  # The leader's word is waited for.
    )

    assert told[0] == told[1]
    assert f"worker 2 ({jobs['worker'][2]}): connection refused" in told[0]
    assert "not complete within 1 s" in told[0]
    assert "worker 1" not in told[0]


def test_missing_leader_is_named():
    jobs = workers(2)

    [told] = results(start(jobs, WORKER_1, timeout_secs=0.5))

    assert f"worker 0 ({jobs['worker'][0]}): connection refused" in told
    assert "`wait_for_peers(timeout_secs=...)` waits longer" in told


def test_name_that_does_not_resolve_is_reported_at_once():
    jobs = {"worker": [*free_addresses(1), "nowhere.invalid:2222", "a..b:2222"]}
    lines = []

    [told] = results(start(jobs, WORKER_0, timeout_secs=1.5, report=lines.append))

    assert "worker 1 (nowhere.invalid:2222: the name does not resolve)" in lines[0]
    assert "0 s of 1.5 s" in lines[0]
    assert len(lines) <= 2  # Once for each name.
    assert "worker 2 (a..b:2222): the name does not resolve" in told


def test_name_that_resolves_later_is_tried_again(monkeypatch):
    jobs = {"worker": free_addresses(2)}
    port = place_of(jobs["worker"][1])[1]
    jobs["worker"][1] = f"late.invalid:{port}"
    known_from = time.monotonic() + 1
    resolve = socket.getaddrinfo

    def resolve_late(host, *args, **kwargs):
        is_known = host == "late.invalid" and time.monotonic() > known_from
        return resolve("127.0.0.1" if is_known else host, *args, **kwargs)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve_late)

    assert results(start(jobs, WORKER_0), start(jobs, WORKER_1)) == [STARTED] * 2


def test_progress_says_who_is_missing_and_how_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "PROGRESS_SECS", 0.5)
    jobs = workers(8)
    lines, told_to_1 = [], []

    results(
        start(jobs, WORKER_0, timeout_secs=2.2, report=lines.append),
        start(jobs, WORKER_1, timeout_secs=2.2, report=told_to_1.append),
    )

    assert 3 <= len(lines) <= 4
    assert lines[0].startswith(f"Waiting for worker 2 ({jobs['worker'][2]}: connection refused")
    assert "and 1 more, " in lines[0] or ", 1 more, " in lines[0]
    assert lines[1].endswith(", 1 s of 2.2 s.")
    assert any("worker 0" in line and "it waits for worker 2" in line for line in told_to_1)


@pytest.mark.parametrize("fact", ["keras", "num_clones"])
def test_different_facts_stop_every_task_with_both_values(fact):
    jobs = workers(3)

    told = results(
        start(jobs, WORKER_0),
        start(jobs, WORKER_1),
        start(jobs, WORKER_2, facts=FACTS | {fact: "other"}),
    )

    assert told[0] == told[1] == told[2]
    zero, _, two = jobs["worker"]
    assert f"{fact} is {FACTS[fact]} on worker 0 ({zero}) and other on worker 2 ({two})" in told[0]


def test_difference_is_told_though_a_task_is_missing(monkeypatch):
    monkeypatch.setattr(leader, "_VERDICT_SECS", 0.5)
    jobs = workers(3)

    told = results(start(jobs, WORKER_0), start(jobs, WORKER_1, facts={"KERASDIST_RUN_ID": "a"}))

    assert told[0] == told[1]
    assert "keras is 3.15.1 on worker 0" in told[0]
    assert "not given on worker 1" in told[0]


def test_different_clusters_are_told_on_every_task():
    zero, one, other = free_addresses(3)

    told = results(
        start({"worker": [zero, one]}, WORKER_0),
        start({"worker": [zero, one, other]}, WORKER_1),
    )

    assert told[0] == told[1]
    assert f"worker 2 is no task on worker 0 ({zero}) and {other} on worker 1 ({one})" in told[0]


def test_task_that_the_leader_does_not_know_is_told(monkeypatch):
    monkeypatch.setattr(leader, "_VERDICT_SECS", 0.5)
    zero, one, other = free_addresses(3)

    told = results(
        start({"worker": [zero, one]}, WORKER_0),
        start({"worker": [zero, other]}, WORKER_1),
    )

    assert told[0] == told[1]
    assert f"worker 1 is {one} on worker 0 ({zero}) and {other} on worker 1" in told[0]


@pytest.mark.parametrize(("twin", "task"), [(0, "worker 0"), (1, "worker 1")])
def test_two_names_of_one_address_are_found(monkeypatch, twin, task):
    monkeypatch.setattr(leader, "_VERDICT_SECS", 0.5)
    jobs = workers(2)
    jobs["worker"].append(jobs["worker"][twin].replace("127.0.0.1", "localhost"))

    told = results(start(jobs, WORKER_0), start(jobs, WORKER_1))

    assert told[0] == told[1]
    assert f"{task} answers at the address of worker 2 (localhost:" in told[0]


@pytest.mark.thorough
@pytest.mark.parametrize("fact", ["KERASDIST_RUN_ID", *exhaustive("KERASDIST_RESTART_COUNT")])
def test_task_of_another_run_is_not_counted_and_not_stopped(fact):
    jobs = workers(2)
    stale = start(jobs, WORKER_1, facts=FACTS | {fact: "old"}, timeout_secs=2)

    [told] = results(start(jobs, WORKER_0, timeout_secs=1))

    assert f"worker 1 ({jobs['worker'][1]}): a task of another run answers, with {fact}=old" in told
    assert not stale.done()
    results(stale)


def test_tasks_tell_of_their_run_whatever_they_must_agree_on(monkeypatch):
    monkeypatch.setenv("KERASDIST_RUN_ID", "a")
    monkeypatch.setattr(leader, "_VERDICT_SECS", 0.5)
    jobs = workers(2)

    told = results(
        start(jobs, WORKER_0, facts={"barrier": "download"}, timeout_secs=2),
        start(jobs, WORKER_1, facts=FACTS),
    )

    assert told[0] == told[1]
    assert "barrier is download on worker 0" in told[0]


def test_task_takes_the_place_of_one_of_another_run():
    jobs = workers(2)
    stale = start(jobs, WORKER_1, facts=FACTS | {"KERASDIST_RUN_ID": "old"}, timeout_secs=1)
    first = start(jobs, WORKER_0)
    results(stale)

    assert results(first, start(jobs, WORKER_1)) == [STARTED] * 2


def test_task_that_answered_and_ended_is_waited_for_again():
    jobs = workers(3)
    first = start(jobs, WORKER_0)
    with socket.create_server(place_of(jobs["worker"][1]), reuse_port=False) as impostor:
        answer_as(impostor, jobs, WORKER_1).close()
    third = start(jobs, WORKER_2)
    time.sleep(0.5)
    assert not third.done()

    assert results(first, third, start(jobs, WORKER_1)) == [STARTED] * 3


def answer_as(server: socket.socket, jobs, task: Task) -> socket.socket:
    """Says hello to whoever calls, as a task would."""
    caller, _ = server.accept()
    caller.recv(1 << 16)
    names = {str(t): address for t, address in Cluster(jobs=jobs, task=task).addresses.items()}
    hello = {"kerasdist": "hello", "task": str(task), "addresses": names, "facts": FACTS}
    caller.sendall(json.dumps(hello).encode() + b"\n")
    return caller


@pytest.mark.thorough
def test_task_that_has_gone_silent_is_not_counted_on(monkeypatch):
    monkeypatch.setattr(leader, "_HEARD_LATELY_SECS", 0.3)
    monkeypatch.setattr(connections, "_ANSWER_SECS", 0.5)
    jobs = workers(3)
    with contextlib.ExitStack() as stack:
        frozen = stack.enter_context(socket.create_server(place_of(jobs["worker"][1])))
        first = start(jobs, WORKER_0, timeout_secs=3)
        stack.enter_context(answer_as(frozen, jobs, WORKER_1))
        time.sleep(0.5)
        stack.enter_context(answer_as_caller(jobs, WORKER_1))
        told = results(first, start(jobs, WORKER_2, timeout_secs=3))

    assert told[0] == told[1]
    assert "worker 1" in told[0]
    assert "worker 2 (" not in told[0]


def answer_as_caller(jobs, task: Task) -> socket.socket:
    names = {str(t): address for t, address in Cluster(jobs=jobs, task=task).addresses.items()}
    hello = {"kerasdist": "hello", "task": str(task), "addresses": names, "facts": FACTS}
    return call_and_send(jobs["worker"][0], json.dumps(hello).encode() + b"\n")


@pytest.mark.thorough
def test_task_that_cannot_reach_the_leader_is_named():
    jobs = workers(2)
    with socket.create_server(place_of(jobs["worker"][1])) as deaf:
        first = start(jobs, WORKER_0, timeout_secs=1)
        with answer_as(deaf, jobs, WORKER_1):
            [told] = results(first)

    assert f"{jobs['worker'][1]}): it answers, but has not reached worker 0" in told


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    b"x" * (3 << 20),
    b"[" * 100_000 + b"\n",
    b'{"kerasdist": "go"}\n',
    b'{"kerasdist": "stop", "reason": "a stranger says so"}\n',
    b'{"kerasdist": "hello"}\n',
    b'{"kerasdist": "hello", "task": [], "addresses": {"a": 1}, "facts": null}\n',
    b'{"kerasdist": {}}\n',
    b"\xff\xfe\n\n",
    b"",
]


@pytest.mark.parametrize("index", [0, 1])
def test_garbage_on_the_port_is_ignored(index):
    jobs = workers(2)
    task = start(jobs, Task("worker", index))
    wait_until_it_listens(jobs["worker"][index])

    with contextlib.ExitStack() as strangers:
        for garbage in GARBAGE:
            strangers.enter_context(call_and_send(jobs["worker"][index], garbage))
        time.sleep(0.5)
        assert not task.done()
        assert results(task, start(jobs, Task("worker", 1 - index))) == [STARTED] * 2


def test_line_without_end_is_not_read_on():
    jobs = workers(2)
    task = start(jobs, WORKER_1)
    wait_until_it_listens(jobs["worker"][1])

    with call_and_send(jobs["worker"][1], b"x" * (3 << 20)) as stranger:
        stranger.settimeout(3)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""

    assert results(task, start(jobs, WORKER_0)) == [STARTED] * 2


def test_second_process_that_takes_itself_for_a_task_is_not_started():
    jobs = workers(2)
    first = start(jobs, WORKER_0)
    wait_until_it_listens(jobs["worker"][0])

    with answer_as_caller(jobs, WORKER_1) as second:
        assert results(first, start(jobs, WORKER_1)) == [STARTED] * 2
        answers = b"".join(iter(lambda: second.recv(1 << 16), b""))

    assert b'"hello"' in answers
    assert b'"go"' not in answers


def test_socket_connected_to_itself_is_no_answer(monkeypatch):
    class Caller(socket.socket):
        def connect(self, address):
            # Linux may pick the called port for the caller, where nobody listens at it.
            self.bind(address)
            super().connect(address)

    monkeypatch.setattr(addresses.socket, "socket", Caller)
    jobs = workers(2)

    [told] = results(start(jobs, WORKER_1, timeout_secs=0.5))

    assert f"worker 0 ({jobs['worker'][0]}): connection refused" in told


@pytest.mark.parametrize("garbage", [*exhaustive(GARBAGE[0], GARBAGE[2]), GARBAGE[6]])
def test_something_else_at_the_address_of_a_task_is_named(garbage):
    jobs = workers(2)
    with socket.create_server(place_of(jobs["worker"][1])) as server:
        first = start(jobs, WORKER_0, timeout_secs=1)
        with server.accept()[0] as caller, contextlib.suppress(OSError):
            caller.sendall(garbage)
        server.settimeout(0.05)
        while not first.done():
            with contextlib.suppress(OSError):
                server.accept()[0].close()
        [told] = results(first)

    assert f"worker 1 ({jobs['worker'][1]}): something answers there, but" in told


# What gRPC of TensorFlow 2.21 sends to whoever calls: settings, of which one value is a newline.
GREETING = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + 18 * b"\n"


@contextlib.contextmanager
def greeting_server(address: str, greeting: bytes = GREETING):
    """Answers as TensorFlow's server does, which does not know our hello."""
    with socket.create_server(place_of(address)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as caller:
                        caller.settimeout(0.2)
                        caller.sendall(greeting)
                        with contextlib.suppress(OSError):
                            caller.recv(1 << 16)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)  # Ends `accept`, which keeps the port otherwise.
        thread.join(timeout=10)


WITH_PS = ("chief", "worker", "ps")


def test_worker_of_a_job_with_parameter_servers_joins_late():
    jobs = {job: [address] for job, address in zip(WITH_PS, free_addresses(3), strict=True)}
    lines = []
    with greeting_server(jobs["chief"][0]):
        [told] = results(start(jobs, WORKER_0, report=lines.append))

    assert told == STARTED
    assert lines == [f"worker 0 ({jobs['worker'][0]}) joins the job, which runs already."]


@pytest.mark.parametrize(
    ("names", "task"),
    [*exhaustive((WITH_PS, Task("ps", 0))), (("chief", "worker"), WORKER_0)],
    ids=["ps", "synchronous worker"],
)
def test_what_cannot_join_late_waits_and_says_what_runs(names, task):
    jobs = {job: [address] for job, address in zip(names, free_addresses(len(names)), strict=True)}
    with greeting_server(jobs["chief"][0]):
        [told] = results(start(jobs, task, timeout_secs=2))

    assert f"chief 0 ({jobs['chief'][0]}): it runs TensorFlow already, for a job that" in told


def test_chief_that_comes_back_waits_for_what_still_serves():
    jobs = {job: [address] for job, address in zip(WITH_PS, free_addresses(3), strict=True)}
    chief, ps = (start(jobs, Task(job, 0)) for job in ("chief", "ps"))
    with greeting_server(jobs["worker"][0]):
        time.sleep(0.5)
        assert not chief.done()

    assert results(chief, ps, start(jobs, WORKER_0)) == [STARTED] * 3


def test_server_of_tensorflow_is_told_from_others(monkeypatch):
    monkeypatch.setattr(addresses, "_CONNECT_SECS", 0.3)
    [address] = free_addresses(1)

    assert "refused" in tensorflow_server.find_problem(address)
    with greeting_server(address):
        assert tensorflow_server.find_problem(address) == ""
    with greeting_server(address, b"HTTP/1.1 400 Bad Request"):
        assert "something other" in tensorflow_server.find_problem(address)
    with socket.create_server(place_of(address)):
        assert "halted or cut off" in tensorflow_server.find_problem(address)


def test_listener_that_never_answers_is_named(monkeypatch):
    monkeypatch.setattr(connections, "_ANSWER_SECS", 0.3)
    jobs = workers(2)
    with socket.create_server(place_of(jobs["worker"][1])):
        [told] = results(start(jobs, WORKER_0, timeout_secs=1))

    assert "something accepts connections there, but does not answer" in told


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
@pytest.mark.parametrize("task", [WORKER_0, WORKER_1])
def test_port_in_use_is_an_error_at_once(host, task):
    jobs = workers(2)
    port = place_of(jobs["worker"][task.index])[1]

    with socket.create_server((host, port)):
        [told] = results(start(jobs, task))

    assert f"Port {port} of {task} (127.0.0.1:{port}) is already in use" in told
    assert f"ss -ltnp 'sport = :{port}'" in told
    assert "set TF_CONFIG={} for a process that runs by itself" in told


def test_a_child_of_multiprocessing_that_runs_the_script_again_is_told_of_the_guard(monkeypatch):
    jobs = workers(2)
    monkeypatch.setattr(multiprocessing.current_process(), "name", "SpawnProcess-1")

    with socket.create_server(place_of(jobs["worker"][0])):
        [told] = results(start(jobs, WORKER_0))

    assert "If that process has started this one with `multiprocessing`" in told
    assert 'under `if __name__ == "__main__":`' in told


def test_task_started_twice_finds_its_port_in_use():
    jobs = workers(2)
    worker_1 = start(jobs, WORKER_1)
    wait_until_it_listens(jobs["worker"][1])

    [told] = results(start(jobs, WORKER_1))

    assert "already in use" in told
    assert results(start(jobs, WORKER_0), worker_1) == [STARTED] * 2


def test_address_of_another_machine_is_reported():
    # 192.0.2.1 is kept for examples: nobody has it.
    jobs = {"worker": ["192.0.2.1:2222", "192.0.2.2:2222"]}
    jobs["worker"][0] = f"192.0.2.1:{place_of(*free_addresses(1))[1]}"
    lines = []

    [told] = results(start(jobs, WORKER_0, timeout_secs=0.5, report=lines.append))

    assert f"worker 0 ({jobs['worker'][0]}) is this process, but its address does not" in lines[0]
    assert "TF_CONFIG left over from another job" in lines[0]
    assert len(lines) == 1
    assert lines[0] in told


WAIT = """
import sys
from kerasdist.cluster import Cluster, Task
from kerasdist.preflight import wait_for_peers

cluster = Cluster(jobs={"worker": sys.argv[2:]}, task=Task("worker", int(sys.argv[1])))
wait_for_peers(cluster, facts={}, timeout_secs=40)
"""


@pytest.mark.processes
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_waiting_task(index, number):
    hosts = ["nowhere.invalid:2222", "nowhere.invalid:2223"]
    [hosts[index]] = free_addresses(1)
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(index), *hosts],
        cwd=Path(__file__).parents[1],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert waiting.stderr and "Waiting for worker" in waiting.stderr.readline()
        waiting.send_signal(number)
        _, errors = waiting.communicate(timeout=3)
    finally:
        waiting.kill()

    assert waiting.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
