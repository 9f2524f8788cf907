"""A child that a program forks does not speak for the task."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from kerasdist.lifetime import process_end

process_end.at_end(print, "the task ends")
if os.fork() == 0:
    sys.exit("the child ends")
os.wait()
"""


@pytest.mark.processes
def test_what_a_task_does_at_its_end_is_not_done_by_a_child():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "the task ends\n"
    assert done.stderr == "the child ends\n"
