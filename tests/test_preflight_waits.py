"""When the preflight calls, reports, decides and gives up, by a clock that the test moves."""

import contextlib
import itertools
import json
import socket
from concurrent.futures import Future

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.messages import contact
from kerasdist.messages.addresses import UNRESOLVED
from kerasdist.messages.connections import Connections
from kerasdist.messages.contact import Contact
from kerasdist.preflight import ClusterStartError
from kerasdist.preflight.follower import follow
from kerasdist.preflight.handshake import Handshake
from kerasdist.preflight.leader import lead
from kerasdist.preflight.rendezvous import Rendezvous
from tests.clock import Clock, RunningClock

pytestmark = pytest.mark.timeout(60)

FACTS = {"keras": "3.15.1"}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def called_at(monkeypatch, clock):
    """The times of all calls, none of which is answered."""
    times = []

    def call(address):
        times.append(clock())
        attempt = Future()
        attempt.set_exception(ConnectionRefusedError())
        return attempt

    monkeypatch.setattr(contact, "call", call)
    return times


def call_for(secs, to, clock):
    for _ in range(round(100 * secs)):
        to.keep_calling(None, None)
        clock.sleep(0.01)


def test_pauses_between_calls_grow_to_two_seconds(called_at, clock):
    call_for(10, Contact("worker 1", "b:1", clock=clock), clock)

    pauses = [after - before for before, after in itertools.pairwise(called_at)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], abs=0.05)


def test_task_that_has_shown_itself_is_called_at_once(called_at, clock):
    worker = Contact("worker 1", "b:1", clock=clock)
    call_for(4, worker, clock)
    worker.call_soon()
    now = clock()
    call_for(0.1, worker, clock)

    assert called_at[-1] == now


@pytest.fixture
def connections(clock):
    with Connections(socket.create_server(("127.0.0.1", 0)), clock=clock) as opened:
        yield opened


@pytest.fixture
def ends():
    """The other sides of connections, by the name of the task."""
    with contextlib.ExitStack() as stack:
        found = {}
        yield found
        for end in found.values():
            stack.enter_context(end)


def connect(connections, ends, task, *, is_call=True):
    ours, ends[task, is_call] = socket.socketpair()
    return connections.add(ours, is_call=is_call)


def handshake_of(index, addresses, facts=FACTS):
    return Handshake.of(Cluster(jobs={"worker": addresses}, task=Task("worker", index)), facts)


def test_connection_without_a_hello_ends_after_ten_seconds(connections, ends, clock):
    stranger = connect(connections, ends, "worker 1")
    clock.sleep(10)
    assert not list(connections.receive(0)) and not stranger.end
    clock.sleep(0.1)

    assert not list(connections.receive(0))
    assert stranger.end == (
        "something accepts connections there, but does not answer as a task does"
    )


def test_task_may_be_silent_unless_it_owes_an_answer(connections, ends, clock):
    task = connect(connections, ends, "worker 1")
    task.introduce(handshake_of(1, ["a:1", "b:1"]))
    clock.sleep(1000)
    assert not list(connections.receive(0)) and task.is_answered

    task.expect_answer()
    clock.sleep(10.1)
    assert not list(connections.receive(0))
    assert task.end == "it answered once and is silent now"


def test_hanging_up_does_not_wait_for_ever(ends):
    with Connections(socket.create_server(("127.0.0.1", 0)), clock=RunningClock()) as connections:
        task = connect(connections, ends, "worker 1")
        task.introduce(handshake_of(1, ["a:1", "b:1"]))
        connections.hang_up()

        assert not task.end


@pytest.fixture
def lines():
    return []


@pytest.fixture
def make_rendezvous(clock, called_at, lines):
    """Makes the rendezvous of one of 3 workers, which calls nobody and hears what the test says."""
    with contextlib.ExitStack() as stack:

        def make(index, heard=lambda secs: ()):
            free = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            addresses = ["a:1", "b:1", "c:1"]
            addresses[index] = f"127.0.0.1:{free.getsockname()[1]}"
            free.close()
            cluster = Cluster(jobs={"worker": addresses}, task=Task("worker", index))
            rendezvous = stack.enter_context(
                Rendezvous(
                    cluster,
                    FACTS,
                    timeout_secs=300,
                    longer="more",
                    report=lines.append,
                    clock=clock,
                )
            )

            def listen_for_a_second():
                clock.sleep(1)
                yield from heard(rendezvous.secs)

            rendezvous.round = listen_for_a_second
            return rendezvous

        yield make


def test_progress_is_reported_every_ten_seconds(make_rendezvous, clock, lines):
    rendezvous = make_rendezvous(1)
    for _ in range(35):
        rendezvous.report_progress([rendezvous.contacts["worker 0"]])
        clock.sleep(1)

    assert lines == [
        f"Waiting for worker 0 (a:1: not called yet), {secs} s of 300 s." for secs in (10, 20, 30)
    ]


def test_name_that_does_not_resolve_is_reported_at_once_and_then_like_others(
    make_rendezvous, clock, lines
):
    rendezvous = make_rendezvous(1)
    leader = rendezvous.contacts["worker 0"]
    for secs in range(35):
        leader.status = UNRESOLVED if secs >= 3 else "refused"
        rendezvous.report_progress([leader])
        clock.sleep(1)

    assert [line.split(", ")[1] for line in lines] == [
        f"{secs} s of 300 s." for secs in (3, 13, 23, 33)
    ]


def test_follower_gives_up_at_the_timeout(make_rendezvous, clock):
    with pytest.raises(ClusterStartError, match=r"within 300 s. worker 1 .* waited for:\n  worker"):
        follow(make_rendezvous(1), may_be_late=False)

    assert clock() == 1300


def test_follower_that_is_led_gives_the_verdict_time_to_arrive(make_rendezvous, ends, clock):
    rendezvous = make_rendezvous(1)
    leader = connect(rendezvous.connections, ends, "worker 0")
    leader.introduce(handshake_of(0, ["a:1", "b:1", "c:1"]))
    with pytest.raises(ClusterStartError):
        follow(rendezvous, may_be_late=False)

    assert clock() == 1305


def test_follower_starts_when_the_leader_says_so(make_rendezvous, clock):
    rendezvous = make_rendezvous(
        1, lambda secs: [(None, {"kerasdist": "go"})] if secs == 70 else ()
    )
    follow(rendezvous, may_be_late=False)

    assert clock() == 1070


def introduce(rendezvous, ends, index, facts=FACTS):
    """Lets a worker be reached by the leader and reach it; returns the leader's call."""
    task = f"worker {index}"
    handshake = handshake_of(index, list(rendezvous.handshake.addresses.values()), facts)
    for is_call in (True, False):
        connection = connect(rendezvous.connections, ends, task, is_call=is_call)
        connection.introduce(handshake)
        if is_call:
            rendezvous.contacts[task].connection = connection
    return rendezvous.contacts[task].connection


def said_to(end):
    end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return [json.loads(line)["kerasdist"] for line in end.recv(1 << 16).splitlines()]
    return []


def test_leader_starts_those_that_are_there_at_once(make_rendezvous, ends, clock):
    rendezvous = make_rendezvous(0)
    for index in (1, 2):
        introduce(rendezvous, ends, index)
    lead(rendezvous)

    assert clock() == 1001
    assert said_to(ends["worker 1", True]) == said_to(ends["worker 2", True]) == ["go"]


def test_leader_gives_up_at_the_timeout_and_says_so(make_rendezvous, ends, clock):
    rendezvous = make_rendezvous(0)
    introduce(rendezvous, ends, 1)
    with pytest.raises(ClusterStartError, match=r"waited for:\n  worker 2 \(c:1\)"):
        lead(rendezvous)

    assert clock() == 1300
    assert said_to(ends["worker 1", True])[-1] == "stop"


def test_leader_hears_once_more_of_a_task_that_it_has_not_heard_for_long(
    make_rendezvous, ends, clock
):
    def heard(secs):
        if secs == 6:  # All have come; worker 1 was heard 6 s ago.
            introduce(rendezvous, ends, 2)
        if secs == 9:
            first.introduce(first.handshake)
        return ()

    rendezvous = make_rendezvous(0, heard)
    first = introduce(rendezvous, ends, 1)
    lead(rendezvous)

    assert clock() == 1009
    assert said_to(ends["worker 1", True]) == ["hello", "go"]
    assert said_to(ends["worker 2", True]) == ["go"]


def test_leader_gives_others_five_seconds_after_the_first_difference(make_rendezvous, ends, clock):
    def heard(secs):
        if secs == 20:
            yield introduce(rendezvous, ends, 1, {"keras": "4.0.0"}), {"kerasdist": "hello"}

    rendezvous = make_rendezvous(0, heard)
    with pytest.raises(ClusterStartError, match=r"keras is 3.15.1 on worker 0 .* and 4.0.0 on"):
        lead(rendezvous)

    assert clock() == 1025
