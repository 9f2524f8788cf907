"""A traceback that several tasks have in common is shown once."""

import io
import itertools
import re
import subprocess
import sys
import textwrap

import pytest

import kerasdist
from kerasdist.cluster import Task
from kerasdist.processes import tracebacks
from kerasdist.processes.console import Console
from tests.launcher.programs import python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]
CHIEF, WORKER = Task("chief", 0), Task("worker", 0)


@pytest.mark.parametrize("as_function", [True, False])
def test_traceback_of_a_failure_is_shown_once(as_function, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import kerasdist

        def fail():
            raise ValueError("of the " + "program")

        if {as_function}:
            kerasdist.launch(fail, num_workers=1)
        fail()
        """)
    )
    start = [] if as_function else ["-m", "kerasdist", "launch", "--workers=1", "--"]
    printed = subprocess.run(
        [sys.executable, *start, *([] if as_function else [sys.executable]), script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert printed.returncode == 1
    shown = printed.stdout
    assert shown.count(", in fail\n") == 1
    assert "function_program.py" not in shown
    # As its last line, in the outcome, and for a function in what is raised from it.
    assert shown.count("ValueError: of the program\n") == (3 if as_function else 2)


def test_only_the_last_thousand_tracebacks_are_known(monkeypatch):
    monkeypatch.setattr(tracebacks, "_MOST_KNOWN", 2)
    shown = tracebacks.Tracebacks()

    def show(task, error):
        return [*shown.add(task, tracebacks.BEGIN), *shown.add(task, error)]

    for number in range(3):
        show(CHIEF, f"ValueError: {number}")

    assert show(WORKER, "ValueError: 2") == ["ValueError: 2 (as chief 0)"]
    assert show(WORKER, "ValueError: 0") == [tracebacks.BEGIN, "ValueError: 0"]


def test_traceback_that_all_tasks_have_is_shown_for_one(capsys):
    source = """
        import traceback
        try:
            raise ValueError("of the program")
        except ValueError:
            traceback.print_exc()
        open(task, "w").close()
        wait_for("worker 0"), wait_for("worker 1")  # Nobody is stopped before it has written.
        sys.exit(1)
    """
    kerasdist.launch(python(source), num_workers=2)

    shown = capsys.readouterr().out
    assert shown.count(" | Traceback (most recent call last):\n") == 1
    lines = re.findall(r"^worker (\d) \| ValueError: of the program(.*)$", shown, re.MULTILINE)
    (first, nothing), (_, remark) = lines
    assert (nothing, remark) == ("", f" (as worker {first})")


def test_tracebacks_that_differ_or_do_not_end_are_all_shown():
    console = Console(stream := io.StringIO(), [CHIEF, WORKER])
    lines = {
        CHIEF: ["Traceback (most recent call last):", "  File 'a'", "ValueError: 1", "", "said"],
        WORKER: ["Traceback (most recent call last):", "  File 'a'", "ValueError: 2", "  it"],
    }
    for pair in itertools.zip_longest(*lines.values()):
        for task, line in zip(lines, pair, strict=True):
            if line is not None:
                console.show_line(task, line)
    console.show_line(WORKER, "Traceback (most recent call last):")
    console.show_line(WORKER, "Traceback (most recent call last):")
    console.show_line(WORKER, "  File 'b'")
    console.show_end(WORKER)
    console.show_end(CHIEF)

    shown = stream.getvalue().splitlines()
    assert [line[11:] for line in shown if line.startswith("chief")] == lines[CHIEF]
    begin = "Traceback (most recent call last):"
    assert [line[11:] for line in shown if line.startswith("worker")] == [
        *lines[WORKER],
        *[begin, begin, "  File 'b'"],
    ]


def test_a_traceback_may_follow_a_line_without_end(capsys):
    source = """
        print(" 5/10 ---- loss: 0.5", end="")
        input("name? ")
    """
    kerasdist.launch(python(source), num_workers=1)

    shown = capsys.readouterr().out
    assert "worker 0 |  5/10 ---- loss: 0.5name? \nworker 0 | Traceback (most recent" in shown
    assert "\n  EOFError: EOF when reading a line\n  A task has no standard input" in shown
