"""The machine of an agent that is alive and does nothing, as with a terminal that is held."""

import io
import socket
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerasdist.cluster import Task
from kerasdist.launcher import gathering, remote_machine
from kerasdist.launcher.agent_messages import Greeting
from kerasdist.launcher.gathering import Gathering
from kerasdist.launcher.machine import Attempt
from kerasdist.messages.connections import Connections
from kerasdist.processes.console import Console
from kerasdist.processes.settings import Settings

TASK = Task("worker", 1)


@pytest.fixture
def job(monkeypatch):
    """Those whom a leader has gathered, with one agent; and what its console shows."""
    monkeypatch.setattr(gathering, "_ANSWER_SECS", 0.2)
    monkeypatch.setattr(remote_machine, "_MORE_SECS", 0.2)
    greeting = Greeting.of_this_process(["train.py"], Settings())
    listener = socket.create_server(("127.0.0.1", 0))
    shown = io.StringIO()
    gathered = Gathering(
        listener,
        cast(Any, SimpleNamespace(name="the leader's")),
        greeting,
        run_id="a",
        most_workers=2,
        grace_secs=0.1,
        console=Console(shown, [TASK]),
    )
    with gathered, Connections(None, clock=time.monotonic) as connections:
        called = socket.create_connection(listener.getsockname(), timeout=10)
        agent = connections.add(called, is_call=True)
        agent.send(greeting.to_message())
        agent.send({"kerasdist": "ready"})
        while len(gathered.machines()) < 2:
            time.sleep(0.01)
        yield gathered, shown


def test_one_that_is_asked_in_vain_is_left_out(job):
    gathered, shown = job
    _, machine = gathered.machines()

    assert machine.addresses(1) == []
    assert len(gathered.machines()) == 1
    assert "did not answer within 0.2 s. It ran no worker." in shown.getvalue()


def test_one_that_does_not_stop_is_lost(job):
    gathered, _ = job
    _, machine = gathered.machines()
    machine.start([TASK], {TASK: "a:1"}, Attempt(num_restarts=0))
    assert machine.look() is None
    machine.stop()
    until = time.monotonic() + 10
    while (outcome := machine.look()) is None and time.monotonic() < until:
        time.sleep(0.01)

    assert outcome and outcome.failure.endswith("whose agent did not stop within 0.3 s")
    assert [each.exit_code for each in outcome.tasks] == [137]
