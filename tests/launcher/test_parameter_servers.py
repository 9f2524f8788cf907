"""A job with parameter servers goes on without a worker, and ends with the chief."""

from pathlib import Path

import pytest

import kerasdist
from tests.launcher.programs import logs_of, python, root_cause

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_what_serves_ends_by_itself_or_is_stopped_when_the_chief_is_done():
    source = """
        task == "chief 0" or wait_for("done")
        task == "ps 0" and time.sleep(600)
        open("done", "w").close()
    """
    result = kerasdist.launch(python(source), num_ps=1, grace_secs=1)

    assert result.exit_code == 0
    assert [str(ended.task) for ended in result.tasks] == [
        "chief 0",
        "worker 0",
        "worker 1",
        "ps 0",
    ]
    assert [ended.exit_code for ended in result.tasks] == [0, 0, 0, 143]
    assert result.reason.endswith("stopped: ps 0.")


# Worker 1 is killed when it is started first.
LOSE_A_WORKER = """
import pathlib
if task == "worker 1":
    print("at work")
    wait_for("begun")
    number = len(list(pathlib.Path().glob("killed *")))
    if number < int(os.environ["NUM_KILLS"]):
        open(f"killed {number}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    open("served", "w").close()
open("begun", "w").close()
task == "chief 0" or time.sleep(600)
"""


def test_job_with_parameter_servers_goes_on_without_a_lost_worker(monkeypatch, capsys):
    monkeypatch.setenv("NUM_KILLS", "1")

    result = kerasdist.launch(
        python(LOSE_A_WORKER + "wait_for('killed 0'); time.sleep(1)"), num_ps=1, grace_secs=1
    )

    assert result.exit_code == 0
    assert "; lost: worker 1; stopped: worker 0, ps 0." in result.reason
    assert (
        "\nworker 1 was ended by a signal: Killed (exit code 137). The job goes on without it. "
        "--max-restarts starts it again.\n"
    ) in capsys.readouterr().out


def test_lost_worker_is_no_failure_when_the_others_end_before_the_chief():
    source = """
        if task == "worker 1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep({"chief 0": 2, "worker 0": 1, "ps 0": 1}[task])
    """
    result = kerasdist.launch(python(source), num_ps=1)

    assert result.exit_code == 0
    assert result.reason.endswith("; lost: worker 1.")


def test_lost_worker_is_started_again_alone(monkeypatch, capsys):
    monkeypatch.setenv("NUM_KILLS", "2")

    result = kerasdist.launch(
        python(LOSE_A_WORKER + "wait_for('served')"), num_ps=1, grace_secs=1, max_restarts=2
    )

    assert (result.exit_code, result.num_restarts) == (0, 0)
    assert "lost" not in result.reason
    assert logs_of(result)["worker 1"].splitlines() == ["at work"] * 3
    printed = capsys.readouterr().out
    assert "The job goes on, and this worker starts again, 1 of 2.\n" in printed
    assert "The job goes on, and this worker starts again, 2 of 2.\n" in printed


@pytest.mark.parametrize(
    ("num_workers", "cause", "end", "exit_code"),
    [
        (1, "worker 0", "os.kill(os.getpid(), signal.SIGKILL)", 137),
        (2, "ps 0", "os.kill(os.getpid(), signal.SIGKILL)", 137),
        (2, "worker 1", "sys.exit('a mistake')", 1),
        (2, "worker 1", "sys.exit(138)", 138),
    ],
    ids=["the last worker", "a ps", "a worker that fails at its start", "a failed peer"],
)
def test_job_with_parameter_servers_does_not_go_on_without(num_workers, cause, end, exit_code):
    result = kerasdist.launch(
        python(f"task == '{cause}' and {end}; time.sleep(600)"),
        num_workers=num_workers,
        num_ps=1,
        grace_secs=1,
    )

    assert result.exit_code == exit_code
    assert root_cause(result) == cause


def test_evaluator_is_waited_for():
    source = "task == 'evaluator 0' and (time.sleep(0.5), open('evaluated', 'w').close())"

    kerasdist.launch(python(source), evaluator=True, num_workers=1)

    assert Path("evaluated").exists()
