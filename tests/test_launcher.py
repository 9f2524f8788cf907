"""The launcher, with real processes: small Python programs without TensorFlow.

After every test nothing may be left: no process, no file in the directory for temporary files.
"""

import contextlib
import errno
import functools
import importlib
import io
import itertools
import json
import os
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import kerasdist
from kerasdist import __main__ as command
from kerasdist.cluster import Cluster, Task
from kerasdist.exit_codes import PEER_FAILED
from kerasdist.launcher import LaunchError, function_program, task_environment, task_log
from kerasdist.launcher.command import checked, split_python
from kerasdist.launcher.console import Console
from kerasdist.launcher.guard import ISOLATED, Guard
from kerasdist.launcher.task_log import LogReader, error_of, last_lines
from tests.network import isolated_only

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

FOREVER = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv(
        "OF_THIS_TEST", str(tmp_path)
    )  # Other launches of this machine are not ours.
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(temporary.iterdir())
    assert not psutil.Process().children(recursive=True)
    assert not launched_processes()


def python(source: str) -> list[str]:
    """Returns the command of a Python program that starts quickly."""
    return [sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(source)]


PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
task = "{type} {index}".format(**config["task"])

def leave(word):
    with open(os.environ["KERASDIST_NOTE"], "a") as note:
        print(word, file=note)

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""


def launched_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            is_ours = environ.get("OF_THIS_TEST") == os.environ["OF_THIS_TEST"]
            if is_ours and "KERASDIST_RUN_ID" in environ:
                found.append(process)
    return found


def logs_of(result) -> dict[str, str]:
    return {str(ended.task): ended.log.read_text() for ended in result.tasks}


def root_cause(result) -> str:
    assert result.exit_code == result.root_cause.exit_code
    return str(result.root_cause.task)


# Tasks and their environment.


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["worker 0", "worker 1"]),
        ({"num_workers": 1, "num_ps": 2}, ["chief 0", "worker 0", "ps 0", "ps 1"]),
        (
            {"num_workers": 1, "chief": True, "evaluator": True},
            ["chief 0", "worker 0", "evaluator 0"],
        ),
    ],
)
def test_every_task_finds_itself_in_tf_config(settings, names):
    source = f"""
        print(os.environ["TF_CONFIG"])
        open(task, "w").close()
        for name in {names}:
            wait_for(name)
        task[:2] == "ps" and time.sleep(600)
    """
    result = kerasdist.launch(python(source), **settings)

    assert [str(ended.task) for ended in result.tasks] == names
    clusters = [Cluster.from_env({"TF_CONFIG": log}) for log in logs_of(result).values()]
    assert [str(cluster.task) for cluster in clusters] == names
    assert all(cluster.jobs == clusters[0].jobs for cluster in clusters)
    assert "evaluator" not in clusters[0].jobs


def test_task_is_told_about_the_launch(monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "kept")
    names = ["NUM_CLONES", "RESTART_COUNT", "RUN_ID"]
    program = python(f"print(*[os.environ['KERASDIST_' + name] for name in {names}])")
    program[-1] += "\nprint(os.environ['OF_THE_USER'], os.environ['PYTHONUNBUFFERED'])"

    result = kerasdist.launch(program, num_clones=3, num_workers=2)

    first, second = logs_of(result).values()
    assert re.fullmatch(r"3 0 [\d-]+-\w{8}\nkept 1\n", first)
    assert first == second


def test_addresses_are_free_ports_of_this_machine_and_leave_the_seed_alone():
    tasks = [Task("worker", index) for index in range(50)]
    random.seed(0)
    first = task_environment.addresses_of(tasks)
    random.seed(0)
    second = task_environment.addresses_of([*tasks, Task("evaluator", 0)])

    assert first != second
    assert list(second) == tasks
    assert len(set(second.values())) == 50
    assert all(re.fullmatch(r"127\.0\.0\.1:[12]\d{4}", address) for address in second.values())
    random.seed(0)
    assert random.random() == pytest.approx(0.8444218515250481)


def test_there_are_as_many_addresses_as_ports_that_are_free(monkeypatch):
    tasks = [Task("worker", index) for index in range(3)]
    with socket.socket() as held:
        held.bind(("", 0))
        port = held.getsockname()[1]
        monkeypatch.setattr(task_environment, "_PORTS", range(port, port + 1))
        with pytest.raises(ValueError, match=rf"3 tasks need .* {port} to {port}, .* has 0\. End"):
            task_environment.addresses_of(tasks)


def test_many_addresses_need_no_open_files():
    tasks = [Task("worker", index) for index in range(2000)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
    try:
        assert len(set(task_environment.addresses_of(tasks).values())) == len(tasks)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_tasks_than_this_process_may_open_files_for_are_refused(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 100))

    with pytest.raises(ValueError, match=r"80 tasks need 130 open files, .* 100\. Allow more"):
        kerasdist.launch(["true"], num_workers=80)


def test_what_a_shell_ignores_in_the_background_is_not_ignored_by_tasks():
    handlers = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)]
    try:
        source = "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGQUIT))"
        result = kerasdist.launch(python(source), num_workers=1)
    finally:
        signal.signal(signal.SIGINT, handlers[0])
        signal.signal(signal.SIGQUIT, handlers[1])

    told = logs_of(result)["worker 0"]
    assert "default_int_handler" in told
    assert told.split()[-1] in ("0", "Handlers.SIG_DFL")


def test_tasks_may_have_as_many_connections_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        source = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        result = kerasdist.launch(python(source), num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert int(logs_of(result)["worker 0"]) == min(hard % (1 << 63), 65536)


# The network.

TALK = """
host, port = config["cluster"]["worker"][0].split(":")
if task == "worker 0":
    with socket.create_server((host, int(port))) as server:
        server.settimeout(20)
        server.accept()[0].sendall(b"hello")
else:
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    print(connection.recv(5))
print(*[name for _, name in socket.if_nameindex()])
"""


@isolated_only
def test_tasks_reach_each_other_in_a_network_of_their_own(capfd):
    result = kerasdist.launch(python(TALK))

    assert logs_of(result) == {"worker 0": "lo\n", "worker 1": "b'hello'\nlo\n"}
    printed = capfd.readouterr()
    assert "isolated" in printed.out
    assert printed.err == ""


@isolated_only
def test_files_of_isolated_tasks_belong_to_the_user():
    kerasdist.launch(python("open(task, 'w').close()"))

    assert {Path(f"worker {index}").stat().st_uid for index in range(2)} == {os.geteuid()}


@isolated_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_without_privileges_get_a_network_of_their_own():
    # As after `setuid`, but files of root may be read until then.
    program = """
        import ctypes, fcntl, os, socket, struct
        from kerasdist.launcher import guard
        libc = ctypes.CDLL(None)
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        libc.prctl(4, 1)  # PR_SET_DUMPABLE: without it, /proc/self stays root's.
        print(guard._isolate(), os.getuid(), *[name for _, name in socket.if_nameindex()])
    """
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True
    )

    assert printed.stdout.split() == [ISOLATED, "65534", "lo"]


def test_network_of_the_host_when_asked_for(capfd):
    result = kerasdist.launch(
        python("print(os.readlink('/proc/self/ns/net'))"), network="host", num_workers=1
    )

    assert logs_of(result)["worker 0"].strip() == os.readlink("/proc/self/ns/net")
    [row] = re.findall("  network .*", capfd.readouterr().out)
    assert re.search(r"ports \d+ are open, without a password, on .*127\.0\.0\.1", row)


def test_open_ports_are_named_where_the_network_cannot_be_isolated(monkeypatch, capsys):
    monkeypatch.setattr(Guard, "network", lambda _: "no network namespace: not permitted")

    result = kerasdist.launch(python(TALK))

    assert result.exit_code == 0
    printed = capsys.readouterr()
    ports = re.findall(r"127\.0\.0\.1:(\d+)", printed.out)
    assert printed.err.count("\n") == 1
    assert "not permitted). TensorFlow's servers listen on every interface" in printed.err
    assert f"on the ports {', '.join(ports)}:" in printed.err


# Output.


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


def test_progress_bar_is_shown_in_its_last_state(capsys):
    source = r"""
        for step in range(3):
            print("\b" * 9 + f"\r{step}/2 steps", end="", flush=True)
        print()
    """
    kerasdist.launch(python(source), num_workers=1)

    assert "worker 0 | 2/2 steps\n" in capsys.readouterr().out


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


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    written = []
    for stream, no_colour in [(Terminal(), ""), (Terminal(), "1"), (io.StringIO(), "")]:
        monkeypatch.setenv("NO_COLOR", no_colour)
        Console(stream, [CHIEF, WORKER]).show_line(WORKER, "hello")
        written.append(re.findall(r"\x1b\[\d+m", stream.getvalue()))

    assert written == [["\x1b[32m", "\x1b[0m"], [], []]


def test_no_stdout_is_no_error():
    Console(None, [CHIEF, WORKER]).show_line(WORKER, "hello")


TENSORFLOW_LINES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795350172.295946    5628 port.cc:153] oneDNN custom operations are on.
I1122 12:22:50.963708    5628 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
E0000 00:00:1795350186.430710    5629 cuda_platform.cc:52] failed call to cuInit: INTERNAL
I0000 00:00:1795350187.648943    5994 coordination_service.cc:505] Example stragglers:
/job:worker/replica:0/task:1
E0000 00:00:1795350326.319154    7804 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE
Additional GRPC error information from remote target /job:worker/replica:0/task:1
:UNKNOWN:Error received from peer  {grpc_message:"Connection reset by peer", grpc_status:14}
"""


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
    lines = [low.format(1, 10), low.format(2, 20), end, end, of_python, of_python]
    for line in lines:
        console.show_line(WORKER, line)

    shown = [line.removeprefix("worker 0 | ") for line in stream.getvalue().splitlines()]
    assert shown == [low.format(1, 10), end, end, of_python, of_python]


def test_progress_bar_stays_where_a_note_of_tensorflow_comes():
    terminal = Terminal()
    console = Console(terminal, [CHIEF])

    console.show_unfinished_line(CHIEF, "1/9")
    for line in TENSORFLOW_LINES.splitlines():
        console.show_unfinished_line(CHIEF, line)
        console.show_line(CHIEF, line)

    assert plain(terminal.getvalue()) == "\r\x1b[Kchief 0 | 1/9"


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


def test_last_lines_of_a_large_log_are_read_from_its_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "\n\n")

    assert last_lines(log, 2) == ["line 99998", "line 99999"]


# Failures.


@pytest.mark.parametrize(
    ("end", "exit_code", "words", "said"),
    [
        ("sys.exit('an error')", 1, "failed with exit code 1", ["  It wrote last: an error"]),
        ("sys.exit(3)", 3, "failed with exit code 3", ["  It wrote last: the last words"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "Killed (exit code 137)", []),
    ],
)
def test_first_failure_is_the_root_cause_and_stops_the_others(end, exit_code, words, said, capsys):
    source = f"""
        if task == "worker 1":
            print("the last words")
            {end}
        time.sleep(600)
    """
    result = kerasdist.launch(python(source), num_workers=3)

    assert result.exit_code == exit_code
    assert [ended.exit_code for ended in result.tasks] == [143, exit_code, 143]
    assert [ended.was_stopped for ended in result.tasks] == [True, False, True]
    assert root_cause(result) == "worker 1"
    assert words in result.reason
    assert result.reason.endswith("the first to fail; stopped: worker 0, worker 2.")
    printed = capsys.readouterr().out
    _, _, told = printed.partition(f"\n{result.reason}\n")
    assert told.splitlines() == [*said, f"  All that worker 1 wrote: {result.tasks[1].log}"]


def test_failed_peer_is_a_consequence_of_what_failed_a_moment_later():
    source = """
        if task == "worker 0":
            wait_for("ready")
            sys.exit(138)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        open("ready", "w").close()
        time.sleep(600)
    """
    result = kerasdist.launch(python(source), grace_secs=1)

    assert root_cause(result) == "worker 1"
    assert result.exit_code == 5


def test_failed_peer_is_the_root_cause_if_nothing_else_failed():
    source = "task == 'worker 0' and sys.exit(138); time.sleep(600)"

    result = kerasdist.launch(python(source), grace_secs=1)

    assert root_cause(result) == "worker 0"
    assert result.exit_code == 138
    assert "(a peer failed)" in result.reason


HALT = """
if task == "worker 1":
    open("halted", "w").close()
    os.kill(os.getpid(), signal.SIGSTOP)
wait_for("halted")
"""


def test_halted_task_is_the_root_cause_where_a_peer_failed():
    result = kerasdist.launch(python(HALT + "time.sleep(0.3); sys.exit(138)"))

    assert root_cause(result) == "worker 1"
    assert result.exit_code == 137
    assert "worker 1 was halted (SIGSTOP)" in result.reason


def test_task_that_is_halted_for_too_long_is_killed():
    result = kerasdist.launch(python(HALT + FOREVER), frozen_timeout_secs=0.1)

    assert "worker 1 was halted (SIGSTOP)" in result.reason
    assert [ended.exit_code for ended in result.tasks] == [143, 137]


def test_task_that_is_halted_briefly_twice_goes_on():
    source = """
        if task == "worker 0":
            open("number", "w").write(str(os.getpid()))
            os.rename("number", "ready")
            wait_for("done")
        else:
            wait_for("ready")
            number = int(open("ready").read())
            for _ in range(2):
                os.kill(number, signal.SIGSTOP)
                time.sleep(1)
                os.kill(number, signal.SIGCONT)
                time.sleep(0.6)
            open("done", "w").close()
    """
    assert kerasdist.launch(python(source), frozen_timeout_secs=1.8).exit_code == 0


def test_task_that_ignores_term_is_killed_after_the_grace_time():
    source = """
        if task == "worker 0":
            wait_for("ready")
            sys.exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("ready", "w").close()
        time.sleep(600)
    """
    start = time.monotonic()
    result = kerasdist.launch(python(source), grace_secs=0.3)

    assert time.monotonic() - start < 10
    assert [ended.exit_code for ended in result.tasks] == [1, 137]


def test_task_gets_the_grace_time_to_save():
    source = """
        def save(*_):
            time.sleep(0.5)
            open("saved", "w").close()
            sys.exit(143)

        if task == "worker 0":
            wait_for("ready")
            sys.exit(1)
        signal.signal(signal.SIGTERM, save)
        open("ready", "w").close()
        time.sleep(600)
    """
    kerasdist.launch(python(source), grace_secs=20)

    assert Path("saved").exists()


@pytest.mark.parametrize("outcome", ["time.sleep(600)", "sys.exit(0)"])
def test_what_a_task_started_does_not_outlive_it(outcome):
    source = f"""
        if task == "worker 0":
            wait_for("begun")
            sys.exit(1)
        subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        open("begun", "w").close()
        {outcome}
    """
    kerasdist.launch(python(source))  # The fixture looks for processes.


def test_timeout_ends_the_launch(capsys):
    result = kerasdist.launch(python(FOREVER), timeout_secs=0.5)

    assert result.exit_code == 124
    assert result.root_cause is None
    assert result.reason == "Not done within 0.5 s; still running: worker 0, worker 1."
    assert [ended.was_stopped for ended in result.tasks] == [True, True]


@pytest.mark.parametrize("settings", [{"num_workers": 2}, {"num_workers": 1, "num_ps": 1}])
def test_a_task_that_ends_while_others_wait_for_it_is_named(settings, capsys):
    source = """
        if task == "worker 0":
            time.sleep(0.5)
        else:
            leave("waiting")
            time.sleep(600)
    """
    result = kerasdist.launch(python(source), **settings)

    assert result.root_cause
    assert (result.exit_code, str(result.root_cause.task)) == (1, "worker 0")
    assert re.match(
        r"worker 0 never called `kerasdist.make_strategy`, where \w+ \d waits for it, and exited "
        r"with code 0 after \d\.\d s, the first to fail; stopped:",
        result.reason,
    )


def test_a_task_that_ends_after_all_had_met_is_done():
    source = """
        leave("waiting")
        time.sleep(0.2 if task == "worker 0" else 0.6)
    """
    assert kerasdist.launch(python(source), num_workers=2).exit_code == 0


def test_an_error_whose_task_is_slow_to_end_is_the_cause():
    source = f"""
        if task == "worker 0":
            wait_for("failed")
            sys.exit({PEER_FAILED})
        leave("failed")
        open("failed", "w").close()
        print("ValueError: slow", flush=True)
        time.sleep(600)
    """
    result = kerasdist.launch(python(source), num_workers=2, grace_secs=0.5)

    assert result.root_cause
    assert (result.root_cause.exit_code, str(result.root_cause.task)) == (1, "worker 1")
    assert result.exit_code == 1
    assert (
        "worker 1 failed with an error and was stopped while it was ending after " in result.reason
    )


# Parameter servers.


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


# Restarts.


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


# Interrupts, and the end of the launcher itself.

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


def wait_until(condition, *, timeout_secs=20):
    deadline = time.monotonic() + timeout_secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
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
        [guard] = [child for child in psutil.Process(process.pid).children() if is_guard(child)]
        guard.kill()
        process.kill()
        wait_until(lambda: not launched_processes(), timeout_secs=5)
    for folder in (tmp_path / "temporary").iterdir():
        folder.rmdir()


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


# Functions.


def task_and_pid():
    return json.loads(os.environ["TF_CONFIG"])["task"], os.getpid()


def test_function_runs_in_fresh_processes_and_returns_its_values():
    values = kerasdist.launch(task_and_pid, num_workers=2, chief=True)

    tasks, pids = zip(*values, strict=True)
    assert tasks == (
        {"type": "chief", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    )
    assert len({*pids, os.getpid()}) == 4


def test_function_carries_what_it_refers_to():
    numbers = [1, 2, 3]

    assert kerasdist.launch(lambda: sum(numbers), num_workers=2) == [6, 6]
    assert kerasdist.launch(functools.partial(max, numbers), num_workers=1) == [3]


def test_function_of_a_module_is_found_where_it_is_here(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/module_of_a_user.py").write_text("def train():\n    return __name__\n")
    monkeypatch.syspath_prepend(tmp_path / "folder")
    module = importlib.import_module("module_of_a_user")

    assert kerasdist.launch(module.train, num_workers=1) == ["module_of_a_user"]


def test_stopped_task_has_no_value():
    def serve():
        while json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "ps":
            time.sleep(1)
        return "trained"

    values = kerasdist.launch(serve, num_workers=1, num_ps=1, grace_secs=1)

    assert values == ["trained", "trained", None]


def test_failed_function_names_the_root_cause_and_its_error():
    def fail():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise KeyError("missing")
        time.sleep(600)

    with pytest.raises(LaunchError, match="worker 1 failed with exit code 1") as raised:
        kerasdist.launch(fail, num_workers=2)

    assert isinstance(raised.value, RuntimeError)
    assert "\n  KeyError: 'missing'\n" in str(raised.value)
    log = raised.value.result.tasks[1].log
    assert str(raised.value).endswith(f"\n  All that worker 1 wrote: {log}")
    assert root_cause(raised.value.result) == "worker 1"


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


def test_function_that_takes_too_long_shows_what_each_task_did():
    def hang():
        print("waiting for", os.environ["TF_CONFIG"][-3])
        time.sleep(600)

    with pytest.raises(TimeoutError, match=r"Not done within 2 s(.|\n)*for 0(.|\n)*for 1"):
        kerasdist.launch(hang, num_workers=2, timeout_secs=2)


def test_function_that_cannot_travel_says_what_to_do():
    lock = threading.Lock()

    with pytest.raises(TypeError, match="inside the function"):
        kerasdist.launch(lambda: lock)


def test_value_that_cannot_travel_says_what_to_do():
    with pytest.raises(LaunchError, match=r"cannot go to the launcher(.|\n)*Return numbers"):
        kerasdist.launch(threading.Lock, num_workers=1)


def test_function_of_a_main_module_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        import kerasdist

        class Value:
            def __init__(self, text):
                self.text = text

        def train():
            return Value("T" + os.environ["TF_CONFIG"][1:10])

        values = kerasdist.launch(train, num_workers=2)
        assert all(isinstance(value, Value) for value in values)
        print([value.text for value in values])
    """)
    )
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)

    assert printed.stdout.endswith("""['T"cluster"', 'T"cluster"']\n""")


def test_function_is_carried_in_a_private_folder():
    with Guard(isolate=False) as guard:
        function_program.pack(task_and_pid, guard.folder)
        assert guard.folder.stat().st_mode & 0o777 == 0o700
        guard.network()
    assert not guard.folder.exists()


# The command and its arguments.


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
        [sys.executable, "-"],
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
    flags = "--workers 4 --ps 2 --chief --evaluator --clones 3 --max-restarts 5 --grace-secs 6 "
    flags += "--timeout-secs 7 --frozen-timeout-secs 8 --log-dir logs --network host -- true -x"

    assert command.main(["launch", *flags.split()]) == 0
    assert received == {
        "program": ["true", "-x"],
        "num_workers": 4,
        "num_ps": 2,
        "chief": True,
        "evaluator": True,
        "num_clones": 3,
        "max_restarts": 5,
        "grace_secs": 6.0,
        "timeout_secs": 7.0,
        "frozen_timeout_secs": 8.0,
        "log_dir": "logs",
        "network": "host",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workers=0", "--", "true"],
            "`num_workers` must be at least 1. Received: num_workers=0",
        ),
        (["--chief", "--workers=0", "--", "true"], "Received: num_workers=0."),
        (["--ps=-1", "--", "true"], "Received: num_ps=-1."),
        (["--clones=0", "--", "true"], "Received: num_clones=0."),
        (["--clones=100000", "--", "true"], "Received: num_clones=100000."),
        (["--log-dir=gs://bucket", "--", "true"], "Received: log_dir='gs://bucket'."),
        (["--max-restarts=-1", "--", "true"], "Received: max_restarts=-1."),
        (["--grace-secs=-1", "--", "true"], "Received: grace_secs=-1.0."),
        (["--timeout-secs=nan", "--", "true"], "Received: timeout_secs=nan."),
        (["--log-dir=/dev/null/logs", "--", "true"], "log_dir='/dev/null/logs'"),
        (["--log-dir=", "--", "true"], "`log_dir` must not be empty. Received: log_dir=''."),
        (["--workers=5000", "--", "true"], "at most 1,000 tasks, which all run on this machine."),
        (["--", "no-such-program"], "Received: 'no-such-program'."),
        (["--", "python"], "is Python without a script. Received: program=['python']"),
        (["--", "python", "-u", "-X", "dev"], "is Python without a script"),
        (["no_such.py"], "a script that does not exist. Received: 'no_such.py', looked for in "),
        (["--", sys.executable, "no_such.py", "--epochs=5"], "Received: 'no_such.py'"),
        (["--", sys.executable, "-u", "-X", "dev", "no_such.py"], "Received: 'no_such.py'"),
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


@pytest.mark.parametrize(
    ("program", "settings", "message"),
    [
        ("python train.py", {}, r"program='python train.py'"),
        (["true", 1], {}, r"program=\['true', 1\]"),
        (["true"], {"num_workers": True}, "num_workers=True"),
        (["true"], {"chief": 1}, "chief=1"),
        (["true"], {"timeout_secs": "10"}, "timeout_secs='10'"),
    ],
)
def test_wrong_types_are_named(program, settings, message):
    with pytest.raises(TypeError, match=message):
        kerasdist.launch(program, **settings)


def test_unknown_network_is_named():
    with pytest.raises(ValueError, match=r"isolated, host.*network='none'"):
        kerasdist.launch(["true"], network="none")


def test_program_that_the_system_cannot_run_has_the_exit_code_of_shells(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    assert kerasdist.launch([str(broken)], num_workers=1).exit_code == 127


# Cost.


def test_launcher_loads_no_tensorflow_and_starts_at_once(tmp_path):
    program = ["sh", "-c", "date +%s.%N"]
    script = f"""
        import sys, time
        from kerasdist.__main__ import main
        assert main(["launch", "--workers=2", "--log-dir=logs", "--", *{program!r}]) == 0
        print(len(sys.modules), *sys.modules)
    """
    secs = []
    while len(secs) < 3 or (min(secs) > 0.6 and len(secs) < 12):  # Other tests run beside it.
        start = time.time()
        printed = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=True,
            capture_output=True,
            text=True,
        )
        logs = [Path(f"logs/worker-{index}.log").read_text() for index in range(2)]
        begun = [float(log.splitlines()[-1]) for log in logs]
        secs.append(max(begun) - start)

    number, *modules = printed.stdout.splitlines()[-1].split()
    assert not {"tensorflow", "keras", "numpy", "cloudpickle"} & set(modules)
    assert int(number) < 350
    assert min(secs) < 0.6  # Twice what it may take, for a busy machine.
