"""The port of a task, asked over HTTP."""

import contextlib
import http.client
import socket
import time

import pytest

from kerasdist.cluster import Cluster
from kerasdist.status import server, task_status
from kerasdist.status.start import start
from kerasdist.status.task_status import TaskStatus
from tests.warned import warned_by


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def status():
    found = TaskStatus()
    found.begin(Cluster.local())
    return found


@pytest.fixture
def port(status):
    number = free_port()
    server.listen(("127.0.0.1", number), status)
    return number


def ask(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_the_metrics_are_in_the_format_of_prometheus(port):
    code, kind, text = ask(port, "/metrics?x=1")

    assert (code, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'kerasdist_workers{task_type="worker",task_index="0"} 1\n' in text


def test_a_process_is_alive_until_a_step_is_stuck(port, status):
    assert ask(port, "/healthz")[::2] == (200, "ok\n")
    status.describe_stuck = lambda: "no step has ended for 3606 s"
    assert ask(port, "/healthz")[::2] == (503, "no step has ended for 3606 s\n")


def test_a_process_is_ready_when_it_serves(port, status):
    assert ask(port, "/readyz")[0] == 503
    status.state = task_status.SERVING
    assert ask(port, "/readyz")[::2] == (200, "ok\n")


def test_another_path_names_those_that_there_are(port):
    code, _, text = ask(port, "/")

    assert code == 404
    assert "/metrics" in text


def test_the_head_has_no_body(port):
    assert ask(port, "/metrics", "HEAD")[2] == ""


def test_who_opens_many_connections_is_turned_away_until_they_close(port):
    with contextlib.ExitStack() as stack:
        for _ in range(server._MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(port, "/healthz")
    assert any(_is_healthy(port) for _ in range(100))


def _is_healthy(port):
    with contextlib.suppress(http.client.HTTPException, OSError):
        return ask(port, "/healthz")[0] == 200
    time.sleep(0.1)  # The server has to notice that the others are gone.
    return False


def test_every_interface_answers_unless_a_host_is_named():
    number = free_port()
    start(Cluster.local(), at_end=print, environ={"KERASDIST_STATUS_PORT": str(number)})

    assert ask(number, "/healthz")[0] == 200
    assert task_status.of_process().is_watched
    assert task_status.of_process().measures_time


def test_a_port_that_is_taken_is_told_and_fails_nothing():
    with socket.create_server(("", 0)) as listener:
        number = listener.getsockname()[1]
        environ = {"KERASDIST_STATUS_PORT": str(number)}
        (warning,) = warned_by(lambda: start(Cluster.local(), at_end=print, environ=environ))

    assert warning.startswith(f"KERASDIST_STATUS_PORT: port {number} is already in use")
    assert not task_status.of_process().is_watched


def test_a_host_of_another_machine_is_told_and_fails_nothing():
    environ = {"KERASDIST_STATUS_PORT": "192.0.2.1:9090"}

    (warning,) = warned_by(lambda: start(Cluster.local(), at_end=print, environ=environ))
    assert warning.startswith("KERASDIST_STATUS_PORT: port 9090 of 192.0.2.1 cannot be opened")


def test_another_strategy_opens_no_other_port():
    environ = {"KERASDIST_STATUS_PORT": str(free_port())}
    start(Cluster.local(), at_end=print, environ=environ)

    assert warned_by(lambda: start(Cluster.local(), at_end=print, environ=environ)) == []
