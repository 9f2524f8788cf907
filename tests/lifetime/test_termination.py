"""A second TERM ends a process that cannot answer the first one."""

import signal
import subprocess
import sys
import time

import pytest

from kerasdist.lifetime.termination import is_repeated

TERM, INT = bytes([signal.SIGTERM]), bytes([signal.SIGINT])
FORKS = """
import multiprocessing, time
from kerasdist.lifetime.termination import Termination

termination = Termination()
termination.watch()
for _ in range(2):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join(10)
    print(child.exitcode, termination.is_asked_for)
    time.sleep(3.2)
"""
STUCK = """
import ctypes
from kerasdist.lifetime.termination import Termination

termination = Termination()
for _ in range(2):  # As two calls of `fit`.
    termination.watch()
    termination.unwatch()
termination.watch()
print("stuck", flush=True)
mutex = ctypes.create_string_buffer(64)
for _ in range(2):  # Does not come back to Python, as a step that waits for data.
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([], False),
        ([(TERM, 0)], False),
        ([(TERM, 0), (TERM, 1)], False),  # A launcher passes on what came to the whole group.
        ([(TERM, 0), (TERM, 1), (TERM, 4)], True),
        ([(INT, 0), (TERM, 4), (INT, 9)], False),
    ],
)
def test_two_at_once_are_one(signals, expected):
    times = iter([at for number, at in signals if number == TERM])

    assert is_repeated([number for number, _ in signals], lambda: next(times)) is expected


@pytest.mark.processes
@pytest.mark.parametrize("has_stderr", [True, False])
def test_a_process_that_does_not_answer_ends_at_the_second_one(has_stderr):
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            [sys.executable, "-c", STUCK],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if has_stderr else full,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.terminate()
            time.sleep(3.5)
            assert process.poll() is None
            process.terminate()
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()

    assert process.returncode == 143
    if has_stderr:
        assert errors.startswith("Received SIGTERM again: this process ends now")


@pytest.mark.processes
def test_term_for_a_child_is_for_the_child_alone():
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (0, "-15 False\n-15 False\n"), done.stderr
