"""The whole cluster starts again, where that is of use."""

from pathlib import Path

import pytest

import kerasdist
from tests.launcher.programs import logs_of, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_restarted_cluster_has_other_ports_and_nothing_of_the_first_is_left():
    source = """
        open(os.environ["KERASDIST_RESTART_COUNT"], "w").write(str(config["cluster"]))
        if os.environ["KERASDIST_RESTART_COUNT"] == "0":
            left = subprocess.Popen(["sleep", "600"], start_new_session=True)
            open("left", "w").write(str(left.pid))
            sys.exit(1)
        try:
            status = open(f"/proc/{open('left').read()}/stat").read().split()[2]
        except FileNotFoundError:
            status = "gone"
        print(status in ("gone", "Z"))  # A zombie is dead.
    """
    result = kerasdist.launch(python(source), num_workers=1, max_restarts=1)

    assert logs_of(result)["worker 0"].splitlines()[-1] == "True"
    assert Path("0").read_text() != Path("1").read_text()


def test_whole_cluster_is_restarted_and_told_so(capsys):
    source = """
        count = os.environ["KERASDIST_RESTART_COUNT"]
        print(f"attempt {count} of {task}")
        open(f"{task}-{count}", "w").close()
        wait_for(f"worker 0-{count}"), wait_for(f"worker 1-{count}")
        if count == "0":
            task == "worker 1" or time.sleep(600)
            sys.exit(1)
    """
    result = kerasdist.launch(python(source), max_restarts=3)

    assert result.exit_code == 0
    assert result.num_restarts == 1
    for task, log in logs_of(result).items():
        assert log.splitlines() == [
            f"attempt 0 of {task}",
            "--- restart 1 of 3 ---",
            f"attempt 1 of {task}",
        ]
    assert capsys.readouterr().out.count("\n--- restart") == 1


@pytest.mark.parametrize(
    ("end", "num_attempts", "reason"),
    [
        ("sys.exit('the same')", 2, "the same error twice in a row"),
        ("sys.exit(1)", 2, "the same error twice in a row"),
        ("sys.exit(f'error {count}')", 4, ""),
        ("sys.exit(138)", 4, ""),
        ("sys.exit(2)", 1, "called wrongly"),
    ],
)
def test_restarts_end_where_they_are_useless(end, num_attempts, reason, capsys):
    source = f"""
        count = os.environ["KERASDIST_RESTART_COUNT"]
        open(f"attempt-{{count}}", "w").close()
        {end}
    """
    result = kerasdist.launch(python(source), num_workers=1, max_restarts=3)

    assert len(list(Path().glob("attempt-*"))) == num_attempts
    assert result.num_restarts == num_attempts - 1
    assert result.exit_code != 0
    assert reason in capsys.readouterr().out


def test_workers_whose_programs_end_apart_are_not_started_again(capsys):
    source = """
        if task == "worker 1":
            open("new", "w").write(str(os.getpid()))
            os.rename("new", "worker 1")
            sys.exit()
        wait_for("worker 1")
        while os.path.exists(f"/proc/{open('worker 1').read()}"):
            time.sleep(0.01)
        sys.exit(138)
    """
    result = kerasdist.launch(python(source), max_restarts=3)

    assert (result.exit_code, result.num_restarts) == (138, 0)
    assert "Not started again: no worker failed, and the program of worker 1 was over before" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("settings", [{"num_workers": 2}, {"num_workers": 1, "num_ps": 1}])
def test_program_that_joins_no_cluster_is_named(settings, capsys):
    result = kerasdist.launch(python("print()"), **settings)

    last = capsys.readouterr().out.splitlines()[-1]
    assert result.exit_code == 0
    assert last.startswith("warning: No task called `kerasdist.make_strategy`.")
    assert f"the program ran {len(result.tasks)} times, each by itself." in last


@pytest.mark.parametrize("num_workers", [1, 2])
def test_program_that_joins_the_cluster_or_is_alone_is_not_warned_of(num_workers, capsys):
    joins = "" if num_workers == 1 else "leave('joined')"

    kerasdist.launch(python(joins), num_workers=num_workers)

    assert "make_strategy" not in capsys.readouterr().out
