"""Which task is the root cause of a failure, and what becomes of the others."""

import re
import time
from pathlib import Path

import pytest

import kerasdist
from kerasdist.support.exit_codes import PEER_FAILED
from tests.cases import exhaustive
from tests.launcher.programs import FOREVER, logs_of, python, root_cause
from tests.network import isolated_only

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("end", "exit_code", "words", "said"),
    [
        ("sys.exit('an error')", 1, "failed with exit code 1", ["  It wrote last: an error"]),
        ("sys.exit(3)", 3, "failed with exit code 3", ["  It wrote last: the last words"]),
        (
            *("input()", 1, "failed with exit code 1"),
            [
                "  EOFError: EOF when reading a line",
                "  A task has no standard input: `input()` finds its end. Use arguments or files "
                "instead.",
            ],
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "Killed (exit code 137)", []),
        # Of the watcher that ends a task which TensorFlow does not connect.
        *exhaustive(
            ("os.kill(os.getpid(), signal.SIGUSR1)", 138, "with exit code 138 (a peer failed)", [])
        ),
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
    assert told.splitlines() == [*said, f"  Full output of worker 1: {result.tasks[1].log}"]


@pytest.mark.parametrize("network", [pytest.param("isolated", marks=isolated_only), "host"])
def test_only_a_task_in_a_network_of_its_own_is_told_of_the_other_one(network, capsys):
    source = "socket.create_connection(('127.0.0.1', 1))"
    kerasdist.launch(python(source), num_workers=1, network=network)

    shown = capsys.readouterr().out
    assert "\n  ConnectionRefusedError: [Errno 111] Connection refused\n" in shown
    assert ("`--network=host` gives them that of this machine" in shown) == (network == "isolated")


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


@pytest.mark.parametrize(("left", "code"), [("begun", 1), ("begun ended", 0)])
def test_task_that_ends_in_the_middle_of_fit_has_failed(left, code):
    result = kerasdist.launch(python(f"leave({left!r}); os._exit(0)"), num_workers=1)

    assert result.exit_code == code
    message = "worker 0 ended in the middle of `fit` or `evaluate` with exit code 0"
    assert result.reason.startswith(message) == bool(code)


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


def test_task_that_is_halted_briefly_twice_goes_on_and_is_named(capsys):
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
                time.sleep(1.5)
                os.kill(number, signal.SIGCONT)
                time.sleep(0.6)
            open("done", "w").close()
    """
    assert kerasdist.launch(python(source), frozen_timeout_secs=2.5).exit_code == 0
    line = "worker 0 was halted (SIGSTOP) for "
    assert capsys.readouterr().out.count(line) == 2


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


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(1)"])
def test_a_task_is_told_that_it_has_lost_one_which_a_signal_ended(end):
    source = f"""
        if task == "worker 1":
            wait_for("ready")
            {end}
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        told = os.environ["KERASDIST_NOTE"].replace(".note", ".loss")
        assert not os.path.exists(told)  # Of another attempt.
        open("ready", "w").close()
        try:
            time.sleep(600)
        finally:
            time.sleep(0.5)
            print(open(told).read() if os.path.exists(told) else "not told")
    """
    result = kerasdist.launch(python(source), max_restarts=1)

    told = "worker 1 was ended by a signal: Killed (exit code 137)."
    log = logs_of(result)["worker 0"].splitlines()
    said = told if "KILL" in end else "not told"
    assert log == [said, "--- restart 1 of 1 ---", said]


def test_a_task_that_somebody_else_kills_while_it_ends_was_not_stopped():
    source = """
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        open(f"ready {task}", "w").close()
        wait_for("ready worker 0"), wait_for("ready worker 1")
        task == "worker 0" or os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """
    result = kerasdist.launch(python(source))

    assert root_cause(result) == "worker 1"
    assert [ended.exit_code for ended in result.tasks] == [137, 137]
    assert [ended.was_stopped for ended in result.tasks] == [False, False]


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
