"""Signs of life on the connections between the processes of a job."""

import socket

import pytest

from kerasdist.messages.connections import Connections
from kerasdist.messages.heartbeat import SILENCE_SECS, Heartbeat
from tests.clock import Clock

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pair(clock):
    """Two sides of a connection, and the heartbeat of the first one."""
    ours, theirs = socket.socketpair()
    with Connections(None, clock=clock) as here, Connections(None, clock=clock) as there:
        for connections, end in ((here, ours), (there, theirs)):
            connections.add(end, is_call=False).introduce("the other side")
        yield here, there, Heartbeat(here, clock=clock)


def pass_by(clock, heartbeat, secs):
    for _ in range(int(secs)):
        clock.secs += 1
        heartbeat.drop_silent()


def test_who_is_silent_for_too_long_is_dropped_with_the_reason(pair, clock):
    here, _, heartbeat = pair
    (connection,) = here.tasks()

    pass_by(clock, heartbeat, SILENCE_SECS)
    assert not connection.end
    pass_by(clock, heartbeat, 1)
    assert connection.end == "it has been silent for 10 s"


def test_who_says_anything_stays(pair, clock):
    here, there, heartbeat = pair
    for _ in range(3):
        pass_by(clock, heartbeat, SILENCE_SECS - 1)
        there.tasks()[0].send({"kerasdist": "beat"})
        assert [message["kerasdist"] for _, message in here.receive(5)] == ["beat"]
    assert here.tasks()


def test_who_was_halted_itself_reads_before_it_judges(pair, clock):
    here, _, heartbeat = pair
    clock.secs += 100
    heartbeat.drop_silent()
    assert here.tasks()

    pass_by(clock, heartbeat, 1)
    assert not here.tasks()


def test_a_beat_is_sent_each_second(pair):
    _, there, heartbeat = pair
    with heartbeat:
        assert [message for _, message in there.receive(5)] == [{"kerasdist": "beat"}]
