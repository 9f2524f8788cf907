"""`python -m kerasdist doctor -- python train.py`: what it says of a program, and its exit codes.

Every run of a program loads TensorFlow, so there are few of them here; where two runs differ and
why is tested on recordings, in the file beside this one.
"""

import re
import sys

import pytest

from kerasdist import __main__ as command
from kerasdist.doctor import entry, table
from kerasdist.parity import CASES
from tests import doctor_programs as programs

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),  # Up to four runs, two of them with two processes.
]


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """Runs the doctor with some options on a program; returns its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*options, program, arguments=()):
        (tmp_path / "train.py").write_text(program)
        started = [sys.executable, "train.py", *arguments]
        code = command.main(["doctor", *options, "--", *started])
        printed = capsys.readouterr()
        # The lines are wrapped for the terminal.
        return code, re.sub(r"\s+", " ", printed.out + printed.err)

    return run


def test_a_program_with_arguments_and_several_fits_is_equal(doctor):
    code, text = doctor("--clones=2", "--steps=4", program=programs.TUTORIAL, arguments=["8"])

    assert code == 0, text
    assert "plain Keras: 4 steps" in text
    assert "MirroredStrategy (num_clones=2" in text
    assert "the same examples in each step, 16 in the last one" in text
    assert "Equal in 4 steps: 14 variables and 2 logs; largest difference" in text


def test_what_differs_by_nature_is_told_from_the_rest(doctor):
    code, text = doctor("--clones=2", "--steps=2", program=programs.GAN)

    assert code == 1
    assert "Differs first in step 1, model 'gan'" in text
    assert re.search(r"Random numbers, drawn in .*forgetting", text)
    assert "Batch statistics of normalization" in text
    assert "nothing else differs: equal in 2 steps" in text


def test_one_device_is_not_taken_for_replicas(doctor):
    options = ("--clones=1", "--steps=1")
    code, text = doctor(*options, program=programs.TUTORIAL, arguments=["8"])

    assert code == 0, text
    assert "the deployment is one device, too" in text
    assert "`--clones 2` compares those" in text


def test_a_sum_over_examples_is_named(doctor):
    code, text = doctor("--steps=2", program=programs.SUM)

    assert code == 1
    assert "Differs first in step 2" in text
    assert "A sum over examples" in text
    assert re.search(r"weight \S+/kernel: \S+ instead of \S+, by \S+", text)


def test_what_makes_runs_equal_at_a_price_is_shown(doctor):
    always = programs.SUM.replace("self.optimizer.iterations < 1", "False")
    code, text = doctor("--steps=1", program=always)

    assert code == 0, text
    assert "warning The gradient over 2 replicas is not the one" in text
    assert "2 replicas are no faster than one. Equal in 1 step: " in text


@pytest.mark.exhaustive
def test_other_data_is_named(doctor):
    code, text = doctor("--clones=2", "--steps=1", program=programs.UNSEEDED)

    assert code == 1
    assert "The order of the data: step 1 read different examples." in text


@pytest.mark.exhaustive
def test_two_workers_and_callbacks_of_ours_are_equal_but_for_16_bits(doctor):
    code, text = doctor("--steps=3", program=programs.WORKERS)

    assert code == 0, text
    assert "GradientClipping needs a strategy, so this is one device of kerasdist" in text
    assert "OneDeviceStrategy: 3 steps" in text
    assert "deployment MultiWorkerMirroredStrategy (num_replicas=2" in text
    assert "unrounded MultiWorkerMirroredStrategy (num_replicas=2" in text
    assert re.search(r"float16: after 3 steps, weights differ by up to \d\.\de-0\d \(", text)


def test_an_error_on_the_deployment_alone_is_shown_once(doctor):
    code, text = doctor("--clones=2", program=programs.FAILING)

    assert code == 1
    assert "plain Keras: 1 step (" in text
    assert "The program failed on the deployment, MirroredStrategy" in text
    assert 'File "train.py", line' in text
    assert text.count("Traceback") == 1
    assert "runpy" not in text


def test_an_error_on_one_device_ends_the_examination(doctor):
    code, text = doctor(program="raise RuntimeError('of the program')")

    assert code == 1
    assert "The program failed on one device, with plain Keras" in text
    assert text.count("RuntimeError: of the program") == 1


def test_a_traceback_begins_with_the_program_also_when_it_is_named_like_runpy(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (script := tmp_path / "train_runpy.py").write_text("(lambda: int('mine'))()")
    with pytest.raises(ValueError, match="mine") as raised:
        entry._run([str(script)])
    trace = raised.value.__traceback__
    assert trace is not None

    frames = entry._frames_of_program(raised.value.with_traceback(trace.tb_next))
    assert frames.tb_frame.f_code.co_name == "<module>"


def test_another_python_is_named(tmp_path, capsys):
    (python := tmp_path / "python").write_text("#!/bin/sh\necho No module named keras; exit 1\n")
    python.chmod(0o755)

    code = command.main(["doctor", "--", str(python), "-m", "train"])

    assert code == 1
    text = capsys.readouterr().out
    assert f"python      {python}; the doctor's is {sys.executable}" in text
    assert "No module named keras" in text


def test_a_program_without_make_strategy_cannot_be_examined(doctor):
    code, text = doctor(program=programs.WITHOUT_STRATEGY)

    assert code == 2
    assert "error: The program never calls `kerasdist.make_strategy`" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=0", "--", "python", "train.py"], "`--steps` must be at least 1. Received: --st"),
        (["--clones=0", "--", "python", "train.py"], "Received: --clones=0."),
        (["--", "python", "no_such_file.py"], "There is no such file: no_such_file.py"),
        (["--", "python", "a b.ipynb"], "`jupyter nbconvert --to script 'a b.ipynb'`"),
        (["--", "ls"], "The doctor examines programs that Python runs"),
        (["--", sys.executable, "-W", "ignore"], "There is no program to run"),
        (["--clones=2"], "`--clones` needs a program to examine"),
        (["--only=x", "--", "python", "train.py"], "`--only` is for the table"),
        (["--quick", "--", "python", "train.py"], "`--quick` is for the table"),
        (["--only=clipnorm", "--markdown=."], "Received: '.' (it is a folder)."),
        (["--markdown=no/x.md"], "Received: 'no/x.md' (there is no folder no)."),
        (["--markdown="], "`--markdown` must name a file that can be written. Received: ''"),
        (
            ["--quick", "--only=Adagrad"],
            "`--only` matches no row. Received: 'Adagrad'. Rows: Adam; ",
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    assert command.main(["doctor", *arguments]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err


def test_the_quick_rows_are_rows_of_the_table():
    assert set(table.QUICK) <= {case.name for case in CASES}
