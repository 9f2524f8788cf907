"""The server of forked tasks: nothing that a task does makes a test wait for ever."""

import fcntl
import os
import signal
import sys
import threading

import pytest

from tests import fork_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


class WaitsTooLong(Exception):
    """What the signal of a test's time limit raises."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_an_error_and_the_next_one_answers():
    with pytest.raises(RuntimeError, match=r"die.* ended with exit code 137\."):
        fork_server.call(die)

    assert fork_server.call(os.getppid) != os.getpid()


def test_an_answer_that_cannot_be_sent_is_an_error():
    with pytest.raises(TypeError, match="cannot pickle") as raised:
        fork_server.call(threading.Lock)

    assert "The answer that cannot be sent: <unlocked" in raised.value.__notes__[0]


def test_a_task_that_a_test_no_longer_waits_for_ends(tmp_path):
    def fail(number, frame):
        raise WaitsTooLong

    source = f"""
import fcntl, os, signal
file = open("lock", "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.kill({os.getpid()}, signal.SIGUSR1)
signal.pause()
"""
    before = signal.signal(signal.SIGUSR1, fail)
    try:
        with pytest.raises(WaitsTooLong):
            fork_server.run(
                [sys.executable, "-c", source], cwd=tmp_path, env=os.environ, timeout_secs=1000
            )
    finally:
        signal.signal(signal.SIGUSR1, before)

    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # It is free when the task has ended.
