"""`kerasdist.testing.run_cluster`, with real processes that load no TensorFlow."""

import json
import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from kerasdist.testing import run_cluster
from tests import fork_server
from tests.cases import exhaustive

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    fork_server.stop()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir("/")  # A run that wrote to the working directory would show.
    yield
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("kerasdist-")]
    assert not Path("/kerasdist_logs").exists()
    assert not psutil.Process().children(recursive=True)


def task():
    return json.loads(os.environ["TF_CONFIG"])["task"]


def test_function_gives_value_output_and_exit_code_of_every_task(capsys):
    def work():
        print("at work")
        return task()["index"] * 10

    results = run_cluster(work, num_workers=2)

    assert [str(result.task) for result in results] == ["worker 0", "worker 1"]
    assert [result.value for result in results] == [0, 10]
    assert [result.output for result in results] == ["at work\n", "at work\n"]
    assert [result.exit_code for result in results] == [0, 0]
    assert capsys.readouterr().out == ""


def test_text_is_the_source_of_a_script():
    results = run_cluster(
        """
        import os, sys
        print(os.environ["KERASDIST_NUM_CLONES"])
        sys.exit(3)
        """,
        num_workers=1,
        num_clones=2,
    )

    assert [(result.output, result.exit_code) for result in results] == [("2\n", 3)]


def test_path_is_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environ['TF_CONFIG'])")

    results = run_cluster(script, num_workers=1, num_ps=1, chief=True, evaluator=True)

    assert [str(result.task) for result in results] == [
        "chief 0",
        "worker 0",
        "ps 0",
        "evaluator 0",
    ]
    assert json.loads(results[0].output)["task"] == {"type": "chief", "index": 0}


def test_failure_is_not_raised_and_stops_the_others():
    def fail():
        if task()["index"] == 1:
            raise KeyError("missing")
        time.sleep(600)

    first, second = run_cluster(fail, num_workers=2)

    assert first.exit_code == 143
    assert second.exit_code == 1
    assert second.output.endswith("KeyError: 'missing'\n")
    assert first.value is second.value is None


def test_others_may_go_on_after_a_failure():
    def fail():
        if task()["index"] == 1:
            os._exit(1)
        time.sleep(0.5)
        return "went on"

    first, second = run_cluster(fail, num_workers=2, stop_on_failure=False)

    assert (first.exit_code, first.value) == (0, "went on")
    assert second.exit_code == 1


@pytest.mark.parametrize("stop_on_failure", [False, *exhaustive(True)])
def test_timeout_shows_what_each_task_did_last(stop_on_failure):
    def hang():
        print(f"worker {task()['index']} waits")
        time.sleep(600)

    message = r"Not done within 5 s(.|\n)*worker 0 waits(.|\n)*worker 1 waits"
    with pytest.raises(TimeoutError, match=message):
        run_cluster(hang, num_workers=2, timeout_secs=5, stop_on_failure=stop_on_failure)


def test_timeout_is_raised_also_where_a_task_failed_before():
    def fail_and_hang():
        if task()["index"] == 1:
            raise KeyError("missing")
        time.sleep(600)

    with pytest.raises(TimeoutError, match=r"still running: worker 0\.(.|\n)*KeyError: 'missing'"):
        run_cluster(fail_and_hang, num_workers=2, timeout_secs=5, stop_on_failure=False)


@pytest.mark.parametrize("program", ["script.py", ["python", "script.py"], None])
def test_other_programs_are_refused(program):
    with pytest.raises(TypeError, match=r"`Path\('script.py'\)`|Received: program="):
        run_cluster(program)
