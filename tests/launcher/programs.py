"""Small Python programs without TensorFlow, for the launcher to start, and what became of them."""

import contextlib
import os
import sys
import textwrap
import time

import psutil

FOREVER = "import time; time.sleep(600)"


def python(source: str) -> list[str]:
    """Returns the command of a Python program that starts quickly."""
    return [sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(source)]


PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type} {index}".format(**config["task"])

def leave(word):
    with open(os.environ["KERASDIST_NOTE"], "a") as note:
        print(word, file=note)

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""


def launched_processes() -> list[psutil.Process]:
    """Returns the processes that the launches of this test have started and that still run."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            is_ours = environ.get("OF_THIS_TEST") == os.environ["OF_THIS_TEST"]
            if is_ours and "KERASDIST_RUN_ID" in environ:
                found.append(process)
    return found


def logs_of(result) -> dict[str, str]:
    return {str(ended.task): ended.log.read_text() for ended in result.tasks}


def root_cause(result) -> str:
    """Returns the task whose exit code is that of the launch."""
    assert result.exit_code == result.root_cause.exit_code
    return str(result.root_cause.task)


def wait_until(condition, *, timeout_secs=20):
    deadline = time.monotonic() + timeout_secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
