"""A function as the program of a launch: what it carries and what it returns."""

import functools
import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

import kerasdist
from kerasdist.launcher import LaunchError, function_program
from kerasdist.processes.guard import Guard
from tests.launcher.programs import root_cause

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def task_and_pid():
    return json.loads(os.environ["TF_CONFIG"])["task"], os.getpid()


def test_function_runs_in_fresh_processes_and_returns_its_values():
    values = kerasdist.launch(task_and_pid, num_workers=2, chief=True)

    tasks, pids = zip(*values, strict=True)
    assert tasks == (
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    )
    assert len({*pids, os.getpid()}) == 4


def test_function_carries_what_it_refers_to():
    numbers = [1, 2, 3]

    assert kerasdist.launch(lambda: sum(numbers), num_workers=2) == [6, 6]
    assert kerasdist.launch(functools.partial(max, numbers), num_workers=1) == [3]


def test_function_of_a_module_is_found_where_it_is_here(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/module_of_a_user.py").write_text("def train():\n    return __name__\n")
    monkeypatch.syspath_prepend(tmp_path / "folder")
    module = importlib.import_module("module_of_a_user")

    assert kerasdist.launch(module.train, num_workers=1) == ["module_of_a_user"]


def test_stopped_task_has_no_value():
    def serve():
        while json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "ps":
            time.sleep(1)
        return "trained"

    values = kerasdist.launch(serve, num_workers=1, num_ps=1, grace_secs=1)

    assert values == ["trained", "trained", None]


def test_failed_function_names_the_root_cause_and_its_error():
    def fail():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise KeyError("missing")
        time.sleep(600)

    with pytest.raises(LaunchError, match="worker 1 failed with exit code 1") as raised:
        kerasdist.launch(fail, num_workers=2)

    assert isinstance(raised.value, RuntimeError)
    assert "\n  KeyError: 'missing'\n" in str(raised.value)
    log = raised.value.result.tasks[1].log
    assert str(raised.value).endswith(f"\n  Full output of worker 1: {log}")
    assert root_cause(raised.value.result) == "worker 1"


def test_function_that_takes_too_long_shows_what_each_task_did():
    def hang():
        print("waiting for", os.environ["TF_CONFIG"][-3])
        time.sleep(600)

    with pytest.raises(TimeoutError, match=r"Not done within 2 s(.|\n)*for 0(.|\n)*for 1"):
        kerasdist.launch(hang, num_workers=2, timeout_secs=2)


def test_function_with_an_argument_that_is_missing_says_how_to_give_it():
    def train(epochs, *, seed=0):
        return epochs + seed

    remedy = r"missing a required argument: 'epochs'.*functools\.partial\(train, \.\.\.\)"
    needy: Any = train
    with pytest.raises(TypeError, match=remedy):
        kerasdist.launch(needy, num_workers=1)
    assert kerasdist.launch(functools.partial(train, 2), num_workers=1) == [2]


def test_function_that_cannot_travel_says_what_to_do():
    lock = threading.Lock()

    with pytest.raises(TypeError, match="inside the function"):
        kerasdist.launch(lambda: lock)


def test_value_that_cannot_travel_says_what_to_do():
    with pytest.raises(LaunchError, match=r"cannot be sent to the launcher(.|\n)*Return numbers"):
        kerasdist.launch(threading.Lock, num_workers=1)


def test_function_of_a_main_module_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        import kerasdist

        class Value:
            def __init__(self, text):
                self.text = text

        def train():
            return Value("T" + os.environ["TF_CONFIG"][1:10])

        values = kerasdist.launch(train, num_workers=2)
        assert all(isinstance(value, Value) for value in values)
        print([value.text for value in values])
    """)
    )
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)

    assert printed.stdout.endswith("""['T"cluster"', 'T"cluster"']\n""")


def test_function_of_a_spawned_process_works(tmp_path):
    (tmp_path / "spawns.py").write_text(
        textwrap.dedent("""
            import multiprocessing
            import kerasdist

            class Five:
                number = 5

            def five():
                return Five.number

            def launch():
                print(kerasdist.launch(five, num_workers=2))

            if __name__ == "__main__":
                process = multiprocessing.get_context("spawn").Process(target=launch)
                process.start()
                process.join()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "spawns.py")], capture_output=True, text=True, check=True
    )
    assert "[5, 5]" in done.stdout, done.stderr


def test_function_is_carried_in_a_private_folder():
    with Guard(isolate=False) as guard:
        function_program.pack(task_and_pid, guard.folder)
        assert guard.folder.stat().st_mode & 0o777 == 0o700
    assert not guard.folder.exists()
