"""The secret of a job: a stranger at its ports cannot end its start, nor pass for a task."""

import json
import socket

import pytest

from kerasdist.cluster import Task
from kerasdist.messages import shared_key
from kerasdist.preflight import rendezvous
from kerasdist.support import environment
from tests import test_preflight as preflight
from tests.cases import exhaustive
from tests.test_preflight import STARTED, WORKER_0, WORKER_1

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def secrets_of(monkeypatch):
    """Return a function that gives the tasks, in the order in which they start, their secrets."""

    def give(*values):
        left = list(values)
        monkeypatch.setattr(rendezvous, "from_env", lambda: left.pop(0))

    return give


def start_in_turn(jobs, **arguments):
    """Start worker 0, and worker 1 when that one listens."""
    first = preflight.start(jobs, WORKER_0, **arguments)
    preflight.wait_until_it_listens(jobs["worker"][0])
    return preflight.results(first, preflight.start(jobs, WORKER_1, **arguments))


@pytest.mark.parametrize("variable", [environment.SECRET, environment.SECRET_FILE])
def test_tasks_with_one_secret_start(variable, tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text("of this job\n")
    monkeypatch.setenv(variable, "of this job" if variable == environment.SECRET else str(path))
    jobs = {"chief": preflight.free_addresses(1), "worker": preflight.free_addresses(3)}
    tasks = [Task("chief", 0), *(Task("worker", index) for index in range(3))]

    assert shared_key.from_env() == b"of this job"
    assert preflight.results(*[preflight.start(jobs, task) for task in tasks]) == [STARTED] * 4


@pytest.mark.parametrize(
    ("first", "second", "reasons"),
    [
        (b"one", b"two", ["its secret is not that of this task"] * 2),
        (b"one", None, ["it has no secret, and this task has one", "it asks for a secret"]),
        *exhaustive(
            (None, b"two", ["it asks for a secret", "it has no secret, and this task has one"])
        ),
    ],
)
def test_tasks_without_the_same_secret_do_not_start(secrets_of, first, second, reasons):
    secrets_of(first, second)

    told = start_in_turn(preflight.workers(2), timeout_secs=2)

    for text, reason in zip(told, reasons, strict=True):  # Or who hung up has told the other.
        assert "was not complete within 2 s" in text
        assert reason in text or "it does not know the secret of this task, or has one" in text
        assert "KERASDIST_SECRET" in text


def test_a_stranger_cannot_end_the_start(monkeypatch):
    monkeypatch.setenv(environment.SECRET, "of this job")
    jobs = preflight.workers(2)
    names = {f"worker {index}": address for index, address in enumerate(jobs["worker"])}
    hello = {"kerasdist": "hello", "task": "worker 1", "addresses": names, "facts": preflight.FACTS}
    lines = [hello, {"kerasdist": "stop", "reason": "a stranger says so"}]
    first = preflight.start(jobs, WORKER_0)
    preflight.wait_until_it_listens(jobs["worker"][0])

    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with preflight.call_and_send(jobs["worker"][0], data) as caller:
        while caller.recv(1 << 16):  # Its number; then it hangs up.
            pass

    assert preflight.results(first, preflight.start(jobs, WORKER_1)) == [STARTED] * 2


def test_what_a_stranger_says_commands_no_terminal():
    """Without a secret he is believed, and his text is shown."""
    jobs = preflight.workers(2)
    names = {f"worker {index}": address for index, address in enumerate(jobs["worker"])}
    hello = {"kerasdist": "hello", "task": "worker 1", "addresses": names, "facts": preflight.FACTS}
    stop = {"kerasdist": "stop", "reason": "red: \x1b[31m\x07 \r\nnext"}
    first = preflight.start(jobs, WORKER_0)
    preflight.wait_until_it_listens(jobs["worker"][0])

    data = b"".join(json.dumps(line).encode() + b"\n" for line in (hello, stop))
    with preflight.call_and_send(jobs["worker"][0], data):
        assert first.result(timeout=30) == "red: ?[31m? ?\nnext"


def pair():
    """Return what seals the two ends of a connection, which know each other's number."""
    caller, called = (shared_key.Seal(b"secret", is_call=is_call) for is_call in (True, False))
    caller.take(called.question())
    called.take(caller.question())
    return caller, called


def test_what_was_sealed_is_opened_in_its_order():
    caller, called = pair()
    sealed = [caller.sealed({"kerasdist": kind}) for kind in ("hello", "stop")]

    assert [called.opened(each) for each in sealed] == [
        '{"kerasdist": "hello"}',
        '{"kerasdist": "stop"}',
    ]


@pytest.mark.parametrize("how", ["twice", "back", "elsewhere", "changed"])
def test_what_was_heard_cannot_be_said_again(how):
    caller, called = pair()
    sealed = caller.sealed({"kerasdist": "stop"})
    other = called
    if how == "twice":
        called.opened(sealed)
    elif how == "back":
        other = caller
    elif how == "elsewhere":
        _, other = pair()
    else:
        sealed["text"] += " "

    with pytest.raises(ValueError):
        other.opened(sealed)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"KERASDIST_SECRET": " "}, "The secret in KERASDIST_SECRET is empty"),
        ({"KERASDIST_SECRET": "a", "KERASDIST_SECRET_FILE": "b"}, "not both"),
        ({"KERASDIST_SECRET_FILE": "/absent/secret"}, "FILE='/absent/secret' .*No such file"),
    ],
)
def test_a_secret_that_is_none_is_refused(variables, message, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=message):
        shared_key.from_env()


def test_without_one_nothing_is_asked_for(monkeypatch):
    monkeypatch.delenv(environment.SECRET, raising=False)
    monkeypatch.delenv(environment.SECRET_FILE, raising=False)
    jobs = preflight.workers(2)

    assert shared_key.from_env() is None
    first = preflight.start(jobs, WORKER_0)
    preflight.wait_until_it_listens(jobs["worker"][0])
    with socket.create_connection(preflight.place_of(jobs["worker"][0])) as caller:
        caller.settimeout(0.3)
        with pytest.raises(TimeoutError):
            caller.recv(1)
    assert preflight.results(first, preflight.start(jobs, WORKER_1)) == [STARTED] * 2
