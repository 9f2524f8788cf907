"""What the environment asks of each task, and what is said of values that cannot work."""

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.status import request
from tests.warned import warned_by

LOCAL = Cluster.local()
JOBS = {"ps": ["a:1", "b:1"], "worker": ["a:2", "A:3", "b:2"], "chief": ["a:4"]}


def cluster_of(job, index):
    return Cluster(jobs=JOBS, task=Task(job, index))


def test_nothing_is_asked():
    asked = request.read({"KERASDIST_STATUS_PORT": " "}, LOCAL)

    assert (asked.address, asked.file) == (None, "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9090", ("", 9090)),
        (":9090", ("", 9090)),
        ("127.0.0.1:9090", ("127.0.0.1", 9090)),
        ("[::1]:9090", ("::1", 9090)),
    ],
)
def test_the_port_may_have_a_host(text, address):
    assert request.read({"KERASDIST_STATUS_PORT": text}, LOCAL).address == address


@pytest.mark.parametrize("text", ["http", "0", "65536", "9090,9091", "::1:9090", "a b:9090", "-1"])
def test_a_value_that_is_no_port_is_told_once_and_left_out(text):
    asked = []
    environ = {"KERASDIST_STATUS_PORT": text}

    (warning,) = warned_by(lambda: asked.append(request.read(environ, LOCAL)))
    assert warning.startswith("KERASDIST_STATUS_PORT must be a port")
    assert f"KERASDIST_STATUS_PORT={text!r}" in warning
    assert asked[0].address is None


@pytest.mark.parametrize(
    ("job", "index", "position"),
    [
        ("chief", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),  # Of the same host, in another spelling.
        ("ps", 0, 3),
        ("worker", 2, 0),
        ("ps", 1, 1),
        ("evaluator", 0, 6),
    ],
)
def test_tasks_of_one_host_have_ports_in_a_row(job, index, position):
    asked = request.read({"KERASDIST_STATUS_PORT": "9090"}, cluster_of(job, index))

    assert asked.address == ("", 9090 + position)


def test_the_last_port_leaves_none_for_others():
    environ = {"KERASDIST_STATUS_PORT": "65535"}

    (warning,) = warned_by(lambda: request.read(environ, cluster_of("worker", 0)))
    assert "KERASDIST_STATUS_PORT='65535' leaves no port for worker 0" in warning


@pytest.mark.parametrize(
    ("job", "index", "file"),
    [
        ("chief", 0, "/runs/state.jsonl"),
        ("worker", 1, "/runs/state.worker-1.jsonl"),
        ("ps", 0, "/runs/state.ps-0.jsonl"),
    ],
)
def test_each_task_has_a_file_of_its_own(job, index, file):
    environ = {"KERASDIST_STATUS_FILE": "/runs/state.jsonl"}

    assert request.read(environ, cluster_of(job, index)).file == file
