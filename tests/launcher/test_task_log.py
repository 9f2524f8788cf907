"""The logs of the tasks, and the error that is read from them."""

import errno
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

import pytest

import kerasdist
from kerasdist.launcher import LaunchError
from kerasdist.processes import task_log
from kerasdist.processes.task_log import LogReader, error_of, last_lines
from tests.launcher.programs import logs_of, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_logs_are_in_a_directory_of_the_run_by_default(capsys):
    result = kerasdist.launch(python("print(os.environ['KERASDIST_RUN_ID'])"), num_workers=1)

    run_id = logs_of(result)["worker 0"].strip()
    assert result.tasks[0].log == Path(f"kerasdist_logs/{run_id}/worker-0.log")
    assert f"kerasdist_logs/{run_id}" in capsys.readouterr().out


def test_logs_are_for_nobody_else_to_read():
    result = kerasdist.launch(python("print('said')"), num_workers=1)

    log = result.tasks[0].log
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic link", "hard link"])
def test_a_log_that_leads_to_another_file_is_refused(make):
    precious = Path("precious")
    precious.write_text("kept")
    Path("logs").mkdir()
    make(precious.absolute(), "logs/worker-0.log")

    with pytest.raises(ValueError, match=r"`log_dir` cannot be written.*worker-0.log is "):
        kerasdist.launch(python(""), num_workers=1, log_dir="logs")

    assert precious.read_text() == "kept"


def test_logs_that_exist_are_continued_and_errors_are_those_of_the_last_launch():
    for line in ("raise ValueError('first')", "sys.exit(1)"):
        result = kerasdist.launch(python(line), num_workers=1, log_dir="logs")

    log = Path("logs/worker-0.log")
    assert re.search(r"ValueError: first\n--- launch 2\d{7}-\d{6}-\w{8} ---\n$", log.read_text())
    assert result.exit_code == 1
    assert error_of(log) == ""


def test_logs_of_a_launch_that_runs_are_for_no_other():
    source = """
import kerasdist
try:
    kerasdist.launch(["true"], num_workers=1, log_dir="logs")
except ValueError as error:
    print(error)
"""
    result = kerasdist.launch([sys.executable, "-c", source], num_workers=1, log_dir="logs")

    assert re.search(
        r"`log_dir` cannot be written\. Received: log_dir='logs' \(another launch that is running",
        logs_of(result)["worker 0"],
    )
    kerasdist.launch(python("print('later')"), num_workers=1, log_dir="logs")


def test_what_a_program_prints_after_an_error_of_ours_is_not_its_error():
    error = "error: worker 0 (a:1) ends because no step has ended for 30 s."
    program = f"print({error!r}); print('saved'); sys.exit(1)"

    kerasdist.launch(python(program), num_workers=1, log_dir="logs")

    assert error_of(Path("logs/worker-0.log")) == error


def test_a_full_disk_is_named(monkeypatch):
    monkeypatch.setattr(task_log, "is_full", lambda folder: folder == Path("logs"))

    with pytest.raises(LaunchError, match="No space left on the disk of logs: the logs end early"):
        kerasdist.launch(_fail, num_workers=1, log_dir="logs")


def _fail():
    raise ValueError("of the disk")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_is_full_where_nothing_can_be_written(tmp_path, monkeypatch, number):
    assert not task_log.is_full(tmp_path)

    def refuse(**_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    assert task_log.is_full(tmp_path) == (number == errno.ENOSPC)


def test_unfinished_line_is_read_piece_by_piece(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    reader = LogReader(log)

    read = []
    for piece in [b"\r1/", b"9\r2/9\r", b"3/9 \xe2\x94", b"\x81\nnext"]:
        with log.open("ab") as file:
            file.write(piece)
        read.append((reader.new_lines(), reader.unfinished_line))

    assert [lines for lines, _ in read] == [[], [], [], ["3/9 ━"]]
    assert [unfinished for _, unfinished in read][:2] == ["1/", "2/9"]
    assert reader.close() == ["next"]


def test_lines_after_a_long_progress_bar_are_read(tmp_path):
    log = tmp_path / "log"
    log.touch()
    reader = LogReader(log)
    log.write_bytes(b"1/9\r" * 600_000 + b"\nValueError: no\nnext")

    assert reader.close() == ["1/9", "ValueError: no", "next"]


def test_last_lines_of_a_large_log_are_read_from_its_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "\n\n")

    assert last_lines(log, 2) == ["line 99998", "line 99999"]


ATTEMPT = "--- restart 1 of 3 ---\n"
NOTE = "I0000 00:00:1795350172.295946    5628 port.cc:153] oneDNN custom operations are on.\n"
TRACEBACK = "Traceback (most recent call last):\n  File 'x'\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (TRACEBACK + "ValueError: no\n", "ValueError: no"),
        (TRACEBACK + "ValueError: no\n" + NOTE, "ValueError: no"),
        (TRACEBACK + "^^^^^\nValueError: no\n", "ValueError: no"),
        (TRACEBACK + "ValueError: a title\n\nand\n  more\n", "ValueError: a title"),
        (TRACEBACK + "KeyError: 1\nDuring ...\n" + TRACEBACK + "OSError\n", "OSError"),
        (
            f"{TRACEBACK}E: Graph execution error:\n\nDetected at node A defined at (most recent "
            "call last):\n\nDetected at node A\nindices = 6\n\t [[{{node A}}]] [Op:f]\n",
            "E: Graph execution error: indices = 6",
        ),
        (f"{TRACEBACK}E: Graph execution error:\n", "E: Graph execution error:"),
        ("usage: ...\nerror: unrecognized arguments: --x\n", "error: unrecognized arguments: --x"),
        ("error: row 5 is damaged\nread 9 rows\ndisk is full\n", "disk is full"),
        (
            "FATAL Flags parsing error: Unknown command line flag 'x'\n"
            "Pass --helpshort or --helpfull to see help on flags.\n",
            "FATAL Flags parsing error: Unknown command line flag 'x'",
        ),
        (TRACEBACK + "ValueError: old\n" + ATTEMPT + "new\n" + NOTE, "new"),
        ("old\n" + ATTEMPT, ""),
        ("", ""),
    ],
)
def test_error_is_the_last_exception_or_the_last_line(log, error, tmp_path):
    path = tmp_path / "log"
    path.write_text(log)

    assert error_of(path) == error
