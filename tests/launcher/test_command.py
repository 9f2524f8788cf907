"""The command line of a launch, and the arguments of `kerasdist.launch`."""

import sys
from pathlib import Path

import pytest

import kerasdist
from kerasdist import __main__ as command
from kerasdist.launcher.command import checked, split_python
from tests.launcher.programs import python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_command_returns_the_exit_code_of_the_program(capsys):
    assert command.main(["launch", "--workers=1", "--", *python("sys.exit(7)")]) == 7


def test_arguments_of_the_program_are_its_own(capsys):
    program = python("print(sys.argv[1:])")
    arguments = ["--workers", "3", "--help", "--", "-x"]

    assert command.main(["launch", "--workers", "1", "--", *program, *arguments]) == 0
    assert f"worker 0 | {arguments}\n" in capsys.readouterr().out


def test_script_may_stand_without_python(capsys):
    Path("script.py").write_text("import sys; print(sys.executable, sys.argv)")

    assert command.main(["launch", "--workers=1", "script.py", "--epochs=5"]) == 0
    assert f"worker 0 | {sys.executable} ['script.py', '--epochs=5']\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "program",
    [
        [sys.executable, "-c", "print()", "no_such.py"],
        [sys.executable, "-um", "this", "no_such.py"],
        [sys.executable, "--version"],
        ["echo", "no_such.py"],
    ],
)
def test_what_is_no_script_of_python_is_not_looked_for(program):
    assert kerasdist.launch(program, num_workers=1).exit_code == 0


@pytest.mark.parametrize(
    ("command", "python", "program"),
    [
        ("train.py --epochs 3", sys.executable, "train.py --epochs 3"),
        ("/usr/bin/python3.13t train.py -m x", "/usr/bin/python3.13t", "train.py -m x"),
        ("python -u -X dev -Wignore train.py", "python -u -X dev -Wignore", "train.py"),
        ("python -uW ignore -m train -c", "python -uW ignore", "-m train -c"),
        ("python -um train", "python -u", "-m train"),
        ("python -mtrain --help", "python", "-m train --help"),
        (
            "python --check-hash-based-pycs never -Bc 1",
            "python --check-hash-based-pycs never -B",
            "-c 1",
        ),
        ("python -B -- train.py", "python -B", "train.py"),
        ("python -", "python", "-"),
        ("python -V", "python -V", ""),
        ("python3-dbg train.py", "python3-dbg", "train.py"),
        ("python-config train.py", "", ""),
        ("env python train.py", "", ""),
    ],
)
def test_the_parts_of_a_command(command, python, program):
    assert split_python(command.split()) == (python.split(), program.split())


def test_a_script_on_the_path_is_a_program(tmp_path, monkeypatch):
    tool = tmp_path / "tool.py"
    tool.write_text("#!/usr/bin/env python")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert checked(["tool.py", "-x"]) == ["tool.py", "-x"]


def test_command_passes_its_settings_on(monkeypatch):
    received = {}

    def launch(program, **settings):
        received.update(settings, program=program)
        return kerasdist.launcher.LaunchResult(
            exit_code=0, tasks=(), root_cause=None, reason="", num_restarts=0
        )

    monkeypatch.setattr(command.launcher, "launch", launch)
    flags = "--workers 4 --ps 2 --chief --evaluator --clones 3 --backup 1 --max-restarts 5 "
    flags += "--grace-secs 6 --timeout-secs 7 --frozen-timeout-secs 8 --log-dir logs "
    flags += "--start-timeout-secs 9 --resize-secs 10 --network host -- true -x"

    assert command.main(["launch", *flags.split()]) == 0
    assert received == {
        "program": ["true", "-x"],
        "num_workers": 4,
        "num_ps": 2,
        "chief": True,
        "evaluator": True,
        "num_clones": 3,
        "num_backup_workers": 1,
        "max_restarts": 5,
        "grace_secs": 6.0,
        "timeout_secs": 7.0,
        "start_timeout_secs": 9.0,
        "resize_secs": 10.0,
        "frozen_timeout_secs": 8.0,
        "log_dir": "logs",
        "network": "host",
        "rendezvous": None,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workers=0", "--", "true"],
            "`--workers` must be at least 1. Received: --workers=0",
        ),
        (["--chief", "--workers=0", "--", "true"], "Received: --workers=0."),
        (["--workers=4:1", "--", "true"], "Received: --workers=4:1. Give --workers=1:4."),
        (
            ["--workers=0:-1", "--", "true"],
            "`--workers` must be a range from the fewest, at least 1, to the most. Received: "
            "--workers=0:-1. Give --workers=1:1.",
        ),
        (["--workers=1:2", "--ps=1", "--", "true"], "Received: --workers=1:2, --ps=1."),
        (["--workers=1:2", "--chief", "--", "true"], "Received: --workers=1:2, --chief."),
        (["--workers=1:5000", "--", "true"], "at most 1,000 tasks, which all run on this machine."),
        (["--resize-secs=-1", "--", "true"], "Received: --resize-secs=-1.0."),
        (["--start-timeout-secs=nan", "--", "true"], "Received: --start-timeout-secs=nan."),
        (["--ps=-1", "--", "true"], "Received: --ps=-1."),
        (["--clones=0", "--", "true"], "Received: --clones=0."),
        (["--clones=100000", "--", "true"], "Received: --clones=100000."),
        (["--backup=1", "--", "true"], "`--backup` needs parameter servers: without them, no w"),
        (["--ps=1", "--backup=-1", "--", "true"], "must be at least 0. Received: --backup=-1."),
        (["--ps=1", "--backup=2", "--", "true"], "Received: --backup=2, --workers=2."),
        (["--log-dir=gs://bucket", "--", "true"], "Received: --log-dir='gs://bucket'."),
        (["--max-restarts=-1", "--", "true"], "Received: --max-restarts=-1."),
        (["--grace-secs=-1", "--", "true"], "Received: --grace-secs=-1.0."),
        (["--timeout-secs=nan", "--", "true"], "Received: --timeout-secs=nan."),
        (["--log-dir=/dev/null/logs", "--", "true"], "--log-dir='/dev/null/logs'"),
        (["--log-dir=", "--", "true"], "`--log-dir` must not be empty. Received: --log-dir=''."),
        (["--workers=5000", "--", "true"], "at most 1,000 tasks, which all run on this machine."),
        (["--", "--workers", "2", "true"], "Received: '--workers'. Options go before --, and the"),
        (["--", "no-such-program"], "Received: 'no-such-program'."),
        (["--", "python"], "is Python without a script. Received: program=['python']"),
        (["--", "python", "-u", "-X", "dev"], "is Python without a script"),
        (["--", "python", "-u", "-", "x"], "standard input, which is not passed on to the tasks"),
        (["no_such.py"], "a script that does not exist. Received: 'no_such.py', looked for in "),
        (["--", sys.executable, "no_such.py", "--epochs=5"], "Received: 'no_such.py'"),
        (["--", sys.executable, "-u", "-X", "dev", "no_such.py"], "Received: 'no_such.py'"),
        (
            ["--", "python", "a.ipynb"],
            "Make a script of it: `jupyter nbconvert --to script a.ipynb`",
        ),
        (["--", "a.ipynb"], "`program` is a notebook"),
        (["--"], "`program` must not be empty"),
        ([], "`program` must not be empty"),
    ],
)
def test_mistake_is_one_line_with_exit_code_2_and_starts_nothing(arguments, message, capfd):
    assert command.main(["launch", *arguments]) == 2

    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ")
    assert message in printed.err


@pytest.mark.parametrize("workers", ["1:", ":2", "1:2:3", "two"])
def test_what_is_neither_a_number_nor_a_range_is_told_what_is(workers, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["launch", f"--workers={workers}", "--", "true"])

    told = "argument --workers: must be a number, such as 4, or a range, such as 1:4. Received: "
    assert f"{told}'{workers}'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "settings", "message"),
    [
        ("python train.py", {}, r"program='python train.py'"),
        (["true", 1], {}, r"program=\['true', 1\]"),
        (["true"], {"num_workers": True}, "num_workers=True"),
        (["true"], {"num_workers": (1, True)}, r"num_workers=\(1, True\)"),
        (["true"], {"num_workers": (1, 2, 3)}, "a range of two: .* workers"),
        (["true"], {"chief": 1}, "chief=1"),
        (["true"], {"timeout_secs": "10"}, "timeout_secs='10'"),
        (["true"], {"log_dir": 3}, "`log_dir` must be the path of a folder. Received: log_dir=3"),
    ],
)
def test_wrong_types_are_named(program, settings, message):
    with pytest.raises(TypeError, match=message):
        kerasdist.launch(program, **settings)


def test_unknown_network_is_named():
    with pytest.raises(ValueError, match=r'"isolated" or "host".*network=.none.'):
        kerasdist.launch(["true"], network="none")


def test_program_that_the_system_cannot_run_has_the_exit_code_of_shells(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    assert kerasdist.launch([str(broken)], num_workers=1).exit_code == 127


@pytest.mark.parametrize(
    ("first_line", "exit_code", "reason"),
    [
        ("#!/no/such/interpreter\n", 127, "there is no '/no/such/interpreter', which its first"),
        ("print(1)\n", 126, 'no first line such as "#!/usr/bin/env python3". Try: python '),
    ],
)
def test_a_script_that_names_no_program_that_runs_it_is_told(
    first_line, exit_code, reason, tmp_path, capsys
):
    script = tmp_path / "train"
    script.write_text(first_line)
    script.chmod(0o755)

    assert kerasdist.launch([str(script)], num_workers=1).exit_code == exit_code
    assert reason in capsys.readouterr().out
