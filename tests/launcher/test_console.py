"""What a launch shows: the lines of its tasks, the plan, the progress bar of the chief."""

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kerasdist
from kerasdist.cluster import Task
from kerasdist.processes.console import Console
from tests.launcher.programs import logs_of, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_lines_are_shown_with_their_task_and_logged_in_order(capsys):
    source = """
        for number in range(3):
            print(f"out {number}")
            print(f"error {number}", file=sys.stderr)
        print("no end", end="")
    """
    result = kerasdist.launch(python(source), num_workers=1, log_dir="logs")

    lines = ["out 0", "error 0", "out 1", "error 1", "out 2", "error 2", "no end"]
    assert Path("logs/worker-0.log").read_text().splitlines() == lines
    shown = capsys.readouterr().out
    assert re.findall(r"^worker 0 \| (.*)$", shown, flags=re.MULTILINE) == lines
    assert "\x1b" not in shown
    assert shown.splitlines()[-1] == result.reason
    assert re.fullmatch(r"All tasks done after \d+\.\d s\.", result.reason)


def test_plan_comes_first(capsys):
    kerasdist.launch(python("print('begun')"), chief=True, evaluator=True, log_dir="logs")

    plan = capsys.readouterr().out.partition(" | ")[0]
    rows = dict(re.findall(r"^  (\S+(?: \d)?) +(.*)$", plan, flags=re.MULTILINE))
    assert plan.startswith("Launch\n")
    assert next(iter(rows)) == "program"
    assert rows["chief 0"].startswith("127.0.0.1:")
    assert rows["evaluator 0"] == "outside the cluster"
    assert rows["logs"] == "logs"
    assert {"worker 0", "worker 1", "network"} <= set(rows)


def test_progress_bar_is_shown_in_its_last_state(capsys):
    source = r"""
        for step in range(3):
            print("\b" * 9 + f"\r{step}/2 steps", end="", flush=True)
        print()
    """
    kerasdist.launch(python(source), num_workers=1)

    assert "worker 0 | 2/2 steps\n" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def terminal_that_is_not_dumb(monkeypatch):
    monkeypatch.delenv("TERM", raising=False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


CHIEF, WORKER = Task("chief", 0), Task("worker", 0)


def test_progress_bar_of_the_chief_stays_below_the_lines_of_others():
    terminal = Terminal()
    console = Console(terminal, [CHIEF, WORKER])

    console.show_unfinished_line(CHIEF, "1/9")
    console.show_unfinished_line(WORKER, "not shown")
    console.show_line(WORKER, "hello")
    console.show_line(CHIEF, "9/9")

    rows = [plain(row) for row in terminal.getvalue().split("\r\x1b[K")]
    assert rows == [
        "",
        "chief 0  | 1/9",
        "worker 0 | hello\nchief 0  | 1/9",
        "chief 0  | 9/9\n",
    ]


def plain(text):
    return re.sub(r"\x1b\[\??\d+[mhl]", "", text)


SLOW_TRAINING = """
import time, numpy as np, keras, kerasdist
with kerasdist.make_strategy().scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
slowly = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: time.sleep(0.5))
model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=1, callbacks=[slowly])
"""


@pytest.mark.timeout(120)
def test_a_terminal_shows_the_progress_of_fit_by_default():
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "kerasdist", "launch", "--workers=1", "--"]
    with subprocess.Popen([*command, sys.executable, "-c", SLOW_TRAINING], stdout=terminal) as run:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # That is the end of what a terminal shows.
            while piece := os.read(controller, 1 << 16):
                shown += piece
    os.close(controller)

    steps = re.findall(r"worker 0 \| .*?(\d)/8 ", plain(shown.decode()))
    assert run.returncode == 0
    assert set("2345678") <= set(steps)


def test_colors_are_for_terminals_that_want_them(monkeypatch):
    written = []
    for stream, no_color in [(Terminal(), ""), (Terminal(), "1"), (io.StringIO(), "")]:
        monkeypatch.setenv("NO_COLOR", no_color)
        Console(stream, [CHIEF, WORKER]).show_line(WORKER, "hello")
        written.append(re.findall(r"\x1b\[\d+m", stream.getvalue()))

    assert written == [["\x1b[32m", "\x1b[0m"], [], []]


def test_a_dumb_terminal_gets_lines_alone(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    console = Console(terminal, [CHIEF, WORKER])

    console.show_unfinished_line(CHIEF, "1/9")
    console.show_line(WORKER, "hello")

    assert terminal.getvalue() == "worker 0 | hello\n"


def test_no_stdout_is_no_error():
    Console(None, [CHIEF, WORKER]).show_line(WORKER, "hello")


def test_what_has_taken_the_place_of_stdout_need_not_be_a_file():
    class Both:
        def __init__(self):
            self.written = []

        def write(self, text):
            self.written.append(text)

        def flush(self):
            pass

    both: Any = Both()
    Console(both, [CHIEF, WORKER]).show_line(WORKER, "hello")

    assert both.written == ["worker 0 | hello\n"]


TENSORFLOW_LINES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795350172.295946    5628 port.cc:153] oneDNN custom operations are on.
I1122 12:22:50.963708    5628 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
I1128 12:56:48.810051 140353533959040 mirrored_strategy.py:423] Using MirroredStrategy with devices
INFO:tensorflow:Collective all_reduce tensors: 1 all_reduces, num_devices = 1
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
E0000 00:00:1795350186.430710    5629 cuda_platform.cc:52] failed call to cuInit: INTERNAL
I0000 00:00:1795350187.648943    5994 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
E0000 00:00:1795350326.319154    7804 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE
The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. pre
E0000 00:00:1795893552.619032   22523 meta_optimizer.cc:967] remapper failed: INVALID_ARGUMENT
Additional GRPC error information from remote target /job:worker/replica:0/task:1
:UNKNOWN:Error received from peer  {grpc_message:"Connection reset by peer", grpc_status:14}
This is usually caused by an earlier error during execution. Check the logs of (a) this task, (b)
"""


def test_a_reader_may_take_its_time_with_a_pipe_that_does_not_block():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    read = bytearray()

    def read_slowly():
        time.sleep(0.2)  # Longer than it takes to fill the pipe.
        with open(read_end, "rb") as pipe:
            while piece := pipe.read(1 << 16):
                read.extend(piece)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    lines = [f"{number} {'x' * 1000}" for number in range(500)]
    with open(write_end, "w") as stream:
        console = Console(stream, [Task("worker", 0)])
        for line in lines:
            console.say(line)
    reader.join()

    assert read.decode().splitlines() == lines


def test_notes_of_tensorflow_are_in_the_log_alone(capsys):
    result = kerasdist.launch(python(f"print({TENSORFLOW_LINES!r} + 'Epoch 1/5')"), num_workers=1)

    assert logs_of(result)["worker 0"] == f"{TENSORFLOW_LINES}Epoch 1/5\n"
    assert re.findall(r"worker 0 \| (.*)", capsys.readouterr().out) == ["Epoch 1/5"]


def test_warnings_of_tensorflow_are_shown_once_for_all_tasks():
    stream = io.StringIO()
    console = Console(stream, [CHIEF, WORKER])
    low = "W0000 00:00:1795350186.430710    {} bfc_allocator.cc:12] Allocation exceeds {} bytes."
    end = "F0000 00:00:1795350186.430710    5629 tensor.cc:9] Check failed: dtype() == expected"
    of_python = "W1122 12:22:50.963708 139872 train.py:12] The learning rate is large."
    of_program = ["I1122 12:22:50.963708 139872 train.py:9] Step 3", "INFO:tensorflow:Step 3"]
    lines = [low.format(1, 10), low.format(2, 20), end, end, of_python, of_python, *of_program]
    for line in lines:
        console.show_line(WORKER, line)

    shown = [line.removeprefix("worker 0 | ") for line in stream.getvalue().splitlines()]
    assert shown == [low.format(1, 10), end, end, of_python, of_python, *of_program]


def test_progress_bar_stays_where_a_note_of_tensorflow_comes():
    terminal = Terminal()
    console = Console(terminal, [CHIEF])

    console.show_unfinished_line(CHIEF, "1/9")
    for line in TENSORFLOW_LINES.splitlines():
        console.show_unfinished_line(CHIEF, line)
        console.show_line(CHIEF, line)

    assert plain(terminal.getvalue()) == "\r\x1b[Kchief 0 | 1/9"
