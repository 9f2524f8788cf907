"""Launches that meet at one address: machines come and go, and the job goes on."""

import contextlib
import re
import signal
import socket
import time
from pathlib import Path

import pytest

import kerasdist
from tests.launcher.agents import Job
from tests.launcher.programs import python
from tests.test_preflight import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(100)]


@pytest.fixture
def job():
    job = Job()
    yield job
    job.close()


def test_a_killed_agent_is_gone_and_a_new_one_takes_its_place(job):
    agents = job.start_all(3, "1:3")
    agents[1].wait_for("attempt 0 with 3")
    agents[1].send(signal.SIGKILL)
    left = [agents[0], agents[2]]
    for agent in left:
        agent.wait_for("restart 1: 2 of 3 workers, checkpoint of step")
    left.append(job.start("1:3"))
    for agent in left:
        agent.wait_for("attempt 2 with 3")
    Path("enough").touch()

    assert [agent.end() for agent in left] == [0, 0, 0]
    for agent in left[:2]:
        lost = r"Lost worker . after .*: worker . was on \S+ \(process \d+\), whose agent answered"
        assert len(re.findall(lost, agent.console)) == 1
        assert " leaves" not in agent.console
        # Each console has the lines of one worker at a time.
        assert re.findall(r"worker (\d) +\| attempt 2", agent.console) != []
        assert len(set(re.findall(r"worker (\d) +\| attempt 0", agent.console))) == 1
    assert set(re.findall(r"(worker \d) +\|", left[0].console)) == {"worker 0"}


def test_an_agent_that_is_told_to_end_leaves_and_the_others_go_on(job):
    agents = job.start_all(3, "2:3")
    agents[2].wait_for("attempt 0 with 3")
    agents[2].send(signal.SIGTERM)

    assert agents[2].end() == 143
    for agent in agents[:2]:
        agent.wait_for("attempt 1 with 2")
        assert agent.console.count(" leaves: all save and end, and the others go on.") == 1
    agents[1].send(signal.SIGINT)
    assert agents[1].end() == 130
    agents[0].wait_for("Waiting for workers: 1 of at least 2 can run")
    job.start("2:3").wait_for("attempt 2 with 2")
    Path("enough").touch()
    assert agents[0].end() == 0


def test_an_error_of_the_program_ends_the_job_and_all_see_it(job):
    program = python("wait_for('all'); task == 'worker 1' and sys.exit('no data'); time.sleep(600)")
    agents = [job.start("2:2", program=program) for _ in range(2)]
    for agent in agents:
        agent.wait_for("Launch\n")
    Path("all").touch()

    assert [agent.end() for agent in agents] == [1, 1]
    for agent in agents:
        assert "Not started again: the program failed with the same error twice" in agent.console
        assert re.search(r"\nworker 1 failed with exit code 1 after .*\n  .*no data", agent.console)


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGTERM, 143, "The leader, .*, ended before the job was done"),
        (signal.SIGKILL, -9, "The leader answered and then went away"),
        (signal.SIGSTOP, None, "The leader has been silent for 3 s"),
    ],
)
def test_without_the_leader_all_end(job, number, code, told):
    leader, *others = job.start_all(3, "1:3")
    for agent in others:
        agent.wait_for("attempt 0 with 3")
    leader.send(number)

    codes = [agent.end(timeout_secs=15) for agent in others]
    assert set(codes) <= {138, 143}
    for agent, ended in zip(others, codes, strict=True):
        assert re.search(rf"\n{told}\. This agent ends with {ended}: start the job", agent.console)
    if code is not None:
        assert leader.end() == code


def test_a_halted_agent_is_given_up(job):
    leader, other = job.start_all(2, "1:2")
    other.wait_for("attempt 0 with 2")
    other.send(signal.SIGSTOP)
    leader.wait_for("whose agent has been silent for 3 s")
    leader.wait_for("attempt 1 with 1")
    other.send(signal.SIGCONT)

    assert other.end() in (138, 143)
    Path("enough").touch()
    assert leader.end() == 0


def test_who_is_too_many_waits_as_a_spare_and_takes_a_lost_place_at_once(job):
    agents = job.start_all(2, "2:2")
    agents[1].wait_for("attempt 0 with 2")
    spare = job.start("2:2")
    spare.wait_for("waits as a spare: 2 workers run already")
    agents[1].send(signal.SIGKILL)
    spare.wait_for("attempt 1 with 2")
    Path("enough").touch()

    assert [agents[0].end(), spare.end()] == [0, 0]


def test_below_the_fewest_the_job_waits_and_ends_by_the_limit(job):
    agents = [job.start("3:4", "--start-timeout-secs=6") for _ in range(2)]

    assert [agent.end() for agent in agents] == [138, 138]
    for agent in agents:
        assert "2 of at least 3 workers can run, and no more came for 6 s." in agent.console


def test_who_does_not_fit_is_turned_away_with_a_line_on_both_sides(job):
    leader = job.start("2:3", KERASDIST_SECRET="a")
    leader.wait_for("leads this job")
    misfits = [
        (job.start("2:4", KERASDIST_SECRET="a"), "has --workers 2:4, and the leader on .* 2:3"),
        (
            job.start("2:3", program=python("print(1)"), KERASDIST_SECRET="a"),
            r"has the program `-c .*`, and the leader on \S+ the program",
        ),
        (job.start("2:3", "--clones=2", KERASDIST_SECRET="a"), "has --clones 2"),
        (job.start("2:3"), "have different secrets: it asks for a secret"),
        (job.start("2:3", KERASDIST_SECRET="b"), "have different secrets: it does not know"),
    ]
    for agent, told in misfits:
        assert agent.end() == 2
        assert re.search(f"\nerror: .*{told}", agent.console)
    assert leader.console.count("turned away") >= 4
    assert "its secret is not that of this task" in leader.console
    leader.send(signal.SIGTERM)
    assert leader.end() == 143


@pytest.mark.parametrize("kind", ["unknown", "nobody", "silent", "talks"])
def test_where_no_leader_is_the_search_ends(job, kind):
    told = {
        "unknown": "the name does not resolve",
        "nobody": "connection refused, nothing listens there",
        "silent": "it has not answered yet",
        "talks": "something answers there, but not as a task",
    }
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        address = "no-such-host.invalid:29400" if kind == "unknown" else address
        if kind == "nobody":
            (address,) = free_addresses(1)
            address = address.replace("127.0.0.1", "192.0.2.1")
        agent = job.start("1:2", "--start-timeout-secs=3", rendezvous=address)
        stranger.settimeout(0.1)
        while kind == "talks" and agent.process.poll() is None:
            with contextlib.suppress(TimeoutError), stranger.accept()[0] as caller:
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert agent.end() == 138

    found = f"No agent that leads was found at {re.escape(address)} within 3 s: "
    assert re.search(found + ("" if kind == "nobody" else told[kind]), agent.console)


def test_strangers_and_what_they_say_change_nothing(job):
    leader = job.start("2:2")
    leader.wait_for("leads this job")
    host, port = job.address.split(":")
    said = [b"GET / HTTP/1.1\r\n\r\n", b'{"kerasdist": "ended"}\n', b'{"kerasdist": "agent"}\n']
    for line in [*said, b"[" * 3000]:
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(line)
            time.sleep(0.1)
    other = job.start("2:2", KERASDIST_HOST="127.0.0.7")
    other.wait_for("attempt 0 with 2")
    Path("enough").touch()

    assert [leader.end(), other.end()] == [0, 0]
    assert "The agent on ? has kerasdist ?" in leader.console
    assert re.search(
        r"\n  worker 0  127\.0\.0\.1:\d+\n  worker 1  127\.0\.0\.7:\d+\n", leader.console
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rendezvous": "a"}, "The port is missing"),
        ({"rendezvous": "0.0.0.0:1"}, "needs the name of one machine"),
        ({"rendezvous": "a:1", "num_ps": 1}, "is for workers alone"),
        ({"rendezvous": "a:1", "network": "isolated"}, "needs the network of the machines"),
    ],
)
def test_what_cannot_meet_is_said_at_once(settings, told):
    with pytest.raises(ValueError, match=told):
        kerasdist.launch(["true"], **settings)


def test_a_function_is_not_for_launches_that_meet():
    with pytest.raises(ValueError, match="must be a command"):
        kerasdist.launch(print, rendezvous="a:1")
