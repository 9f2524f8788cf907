"""A line that nobody takes, and the end of a process, where nothing can be written."""

import os
import subprocess
import sys

import pytest

from kerasdist.support import memory, terminal
from tests import unwritable


@pytest.fixture(params=[unwritable.FullDisk, unwritable.closed, lambda: None])
def no_terminal(request, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, request.param())


def test_a_line_is_announced_once(capsys, monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "said", set())

    for line in ("Data: 2 files.", "Data: 3 files.", "Data: 2 files."):
        terminal.announce(line)

    assert capsys.readouterr() == ("", "Data: 2 files.\nData: 3 files.\n")


def test_a_line_is_said_beside_what_the_program_prints(capsys):
    terminal.say("Data: 2 files.")

    assert capsys.readouterr() == ("", "Data: 2 files.\n")


def test_a_line_that_nobody_takes_is_no_error(no_terminal):
    terminal.say("Data: 2 files.")


def test_a_process_ends_where_nothing_can_be_written(no_terminal, monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match=r"^138$"):
        terminal.end_process(138)


@pytest.mark.processes
def test_a_program_leaves_with_its_exit_code_where_nothing_can_be_written():
    program = "from kerasdist.support import memory, terminal; print(1); terminal.leave(138)"
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as broken:
        result = subprocess.run(
            [sys.executable, "-c", program], stdout=broken, stderr=broken, env=variables, timeout=60
        )

    assert result.returncode == 138
