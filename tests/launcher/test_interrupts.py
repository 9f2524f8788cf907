"""Interrupts, and the end of the launcher itself."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

import kerasdist
from kerasdist.processes import guard
from tests.cases import exhaustive
from tests.launcher.programs import FOREVER, launched_processes, logs_of, python, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


FAMILY = """
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
open(f"{task} begun", "w").close()
time.sleep(600)
"""


@contextlib.contextmanager
def launch_command(*arguments: str, program: list[str]):
    """Starts `python -m kerasdist launch` and yields it when both workers have begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kerasdist", "launch", "--log-dir=logs", *arguments, "--", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: all(Path(f"worker {index} begun").exists() for index in range(2)))
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), *exhaustive((signal.SIGHUP, 129))],
)
def test_signal_to_the_launcher_stops_everything(number, exit_code):
    save = """
def save(*_):
    open(f"{task} saved", "w").close()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
"""
    with launch_command(program=python(save + FAMILY)) as launcher:
        assert len(launched_processes()) == 6
        launcher.send_signal(number)
        output = launcher.communicate(timeout=20)[0]

    assert launcher.returncode == exit_code
    assert re.search(r"Stopping all tasks\..*\nAll tasks stopped after \d+\.\d s\.\n$", output)
    assert "Traceback" not in output
    assert Path("worker 0 saved").exists()
    assert Path("worker 1 saved").exists()
    assert not launched_processes()


def test_an_interrupt_is_heard_in_the_background_of_a_script():
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with launch_command(program=python(FAMILY)) as launcher:
            launcher.send_signal(signal.SIGINT)
            launcher.communicate(timeout=20)
    finally:
        signal.signal(signal.SIGINT, ignored)

    assert launcher.returncode == 130
    assert not launched_processes()


def test_second_interrupt_kills_at_once():
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY
    with launch_command("--grace-secs=600", program=python(stubborn)) as launcher:
        launcher.send_signal(signal.SIGINT)
        while "Stopping" not in launcher.stdout.readline():
            pass
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=20)

    assert launcher.returncode == 130
    assert not launched_processes()


def test_tasks_end_with_a_launcher_that_is_killed(tmp_path):
    with launch_command(program=python(FAMILY)) as launcher:
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not launched_processes(), timeout_secs=5)
        wait_until(lambda: not list((tmp_path / "temporary").iterdir()), timeout_secs=5)


def test_tasks_end_with_a_killed_launcher_also_without_guard(tmp_path):
    with launch_command(program=python("open(f'{task} begun', 'w').close();" + FOREVER)) as process:
        [watching] = [each for each in psutil.Process(process.pid).children() if is_guard(each)]
        watching.kill()
        process.kill()
        wait_until(lambda: not launched_processes(), timeout_secs=5)
    for folder in (tmp_path / "temporary").iterdir():
        folder.rmdir()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_launch_ends_and_leaves_nothing_without_its_guard(number, monkeypatch, tmp_path):
    monkeypatch.setattr(guard, "_END_SECS", 0.5)

    with guard.Guard(isolate=False) as watching:
        os.kill(watching.pid, number)

    assert not list((tmp_path / "temporary").iterdir())


def test_a_guard_whose_launcher_is_gone_when_it_begins_leaves_nothing(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, guard.__file__, str(tmp_path / "temporary"), "host"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (0, b"")
    assert not list((tmp_path / "temporary").iterdir())


def is_guard(process):
    return any(argument.endswith("guard.py") for argument in process.cmdline())


def test_launch_may_run_in_any_thread():
    results = []
    thread = threading.Thread(
        target=lambda: results.append(kerasdist.launch(python("print('done')")))
    )
    thread.start()
    thread.join(timeout=30)

    assert [result.exit_code for result in results] == [0]


def test_training_goes_on_when_nobody_reads_the_output():
    source = "open(f'{task} begun', 'w').close(); wait_for('read'); print('more'); wait_for('end')"
    with launch_command(program=python(source)) as launcher:
        launcher.stdout.close()
        Path("read").touch()
        wait_until(lambda: Path("logs/worker-1.log").read_text())
        time.sleep(0.2)
        assert launcher.poll() is None
        Path("end").touch()
        assert launcher.wait(timeout=20) == 0


def test_handlers_of_signals_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]

    kerasdist.launch(python("pass"), num_workers=1)

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_program_ignores_no_signal_because_python_does():
    ask = ["grep", "SigIgn", "/proc/self/status"]

    result = kerasdist.launch(ask, num_workers=1)

    assert logs_of(result)["worker 0"] == subprocess.check_output(ask, text=True)


def test_a_launch_inside_one_that_is_killed_leaves_nothing(tmp_path):
    launch = [sys.executable, "-m", "kerasdist", "launch", "--workers=1", "--"]
    inner = [*launch, *python('open("begun", "w").close(); time.sleep(600)')]
    process = subprocess.Popen([*launch, *inner], stdout=subprocess.DEVNULL)
    try:
        wait_until(Path("begun").exists)
        assert list(Path(tempfile.gettempdir()).glob("kerasdist-*/kerasdist-*"))
    finally:
        process.kill()
        process.wait()

    wait_until(lambda: not list(Path(tempfile.gettempdir()).iterdir()))
