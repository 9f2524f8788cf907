"""A range of workers: the job goes on with those that are left, and with more again later."""

import re

import pytest

import kerasdist
from tests.launcher.programs import logs_of, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

# A worker that trains: it writes checkpoints, goes on from the newest, ends with 138 if another one
# is gone, and with 143 after it has saved, when it is told to end.
TRAINING = """
num_workers = len(config["cluster"]["worker"])
attempt = int(os.environ["KERASDIST_RESTART_COUNT"])
leave("joined")
print("attempt", attempt, "with", num_workers, flush=True)
open(f"{task} of attempt {attempt}", "w").write(str(os.getpid()))

def save(step):
    if task == "worker 0":
        open("step.new", "w").write(str(step))
        os.rename("step.new", "step")  # TERM may come in between.
        leave(f"saved:{step}")

def newest():
    return int(open("step").read() or 0) if os.path.exists("step") else 0

def end(*_):
    save(newest() + 1)
    sys.exit(143)

signal.signal(signal.SIGTERM, end)

def wait_for_all(attempt=attempt):
    for index in range(num_workers):
        wait_for(f"worker {index} of attempt {attempt}")

def train(secs=600, saves=False):
    wait_for_all()
    others = [int(open(f"worker {index} of attempt {attempt}").read() or os.getpid())
              for index in range(num_workers)]
    until = time.monotonic() + secs
    while time.monotonic() < until:
        time.sleep(0.01)
        saves and save(newest() + 1)
        if any(map(is_gone, others)):
            sys.exit(138)

def is_gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def program(source):
    return python(TRAINING + source)


def sizes_of(result):
    """Returns with how many workers each attempt ran, as worker 0 has written."""
    found = re.findall(r"attempt \d+ with (\d+)", logs_of(result)["worker 0"])
    return [int(size) for size in found]


def test_the_job_goes_on_with_those_that_are_left_and_later_with_all(capsys):
    source = """
if attempt == 0:
    save(120)
    task == "worker 2" and (wait_for_all(), die())
    train()
if attempt == 1:
    train(saves=True)
"""
    result = kerasdist.launch(program(source), num_workers=(1, 4), resize_secs=1.0)

    assert (result.exit_code, result.num_restarts) == (0, 2)
    assert sizes_of(result) == [4, 3, 4]
    told = [line for line in capsys.readouterr().out.splitlines() if " | " not in line]
    said = "\n".join(told)
    assert "  workers   1 to 4\n" in said
    assert re.search(
        r"\nLost worker 2 after \d+\.\d s: worker 2 was ended by a signal: Killed \(exit code 137\)"
        r"\. At most the \d+ s since the checkpoint of step 12\d are made again\."
        r" A lost place comes back in [01] s\.\n"
        r"--- restart 1: 3 of 4 workers, checkpoint of step 12\d ---\n"
        r"4 workers can run now, not only 3: the job saves, and goes on with all 4\.\n"
        r"--- restart 2: 4 of 4 workers, checkpoint of step \d{3} ---\n"
        r"All tasks done",
        said,
    )
    # The log of one that was away has the marks of all attempts.
    assert [line[:13] for line in logs_of(result)["worker 3"].splitlines()] == [
        *("attempt 0 wit", "--- restart 1", "--- restart 2", "attempt 2 wit"),
    ]


def test_a_job_that_is_done_when_more_workers_come_is_not_started_again():
    source = """
attempt == 0 and task == "worker 1" and (wait_for_all(), die())
attempt == 0 and train()
save(5)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # The last line was just over.
time.sleep(30)
"""
    result = kerasdist.launch(program(source), num_workers=(1, 2), resize_secs=0.5)

    assert (result.exit_code, result.num_restarts) == (0, 1)


def test_a_lost_place_is_back_at_once_if_the_job_cannot_go_on_without_it():
    source = """
if attempt == 0:
    task == "worker 1" and (wait_for_all(), die())
    train()
"""
    result = kerasdist.launch(program(source), num_workers=(2, 2), resize_secs=600)

    assert (result.exit_code, result.num_restarts) == (0, 1)
    assert sizes_of(result) == [2, 2]


def test_a_program_without_checkpoints_is_not_stopped_for_more_workers(capsys):
    source = """
if attempt == 0:
    task == "worker 0" and (wait_for_all(), die())
    train()
train(secs=1)
"""
    result = kerasdist.launch(program(source), num_workers=(1, 2), resize_secs=0.2)

    assert (result.exit_code, result.num_restarts) == (0, 1)
    assert capsys.readouterr().out.count("2 workers could run now, but the 1 that does is not") == 1


def test_a_worker_that_is_told_to_end_lets_all_save_and_start_again():
    source = """
if attempt == 0:
    if task == "worker 1":
        wait_for_all()
        os.kill(os.getpid(), signal.SIGTERM)
    train()
"""
    result = kerasdist.launch(program(source), num_workers=(1, 2), resize_secs=600)

    assert (result.exit_code, result.num_restarts) == (0, 1)
    assert sizes_of(result) == [2, 2]


@pytest.mark.parametrize(
    ("end", "num_attempts", "exit_code", "reason"),
    [
        ("sys.exit('the same')", 2, 1, "the program failed with the same error twice in a row"),
        ("sys.exit(2)", 1, 2, "exit code 2 means that the program was called wrongly"),
        ("die()", 3, 137, "2 restarts in a row, and no new checkpoint in between"),
        ("attempt < 5 and (save(attempt), die())", 6, 0, ""),
    ],
)
def test_restarts_are_counted_from_the_last_checkpoint(
    end, num_attempts, exit_code, reason, capsys
):
    result = kerasdist.launch(program(end), num_workers=(1, 1), max_restarts=2)

    assert (result.exit_code, result.num_restarts) == (exit_code, num_attempts - 1)
    told = re.findall("Not started again: (.*)\\.\n", capsys.readouterr().out)
    assert told == ([reason] if reason else [])


def test_values_are_those_of_the_last_attempt(capsys):
    def train():
        import os
        import signal

        attempt = int(os.environ["KERASDIST_RESTART_COUNT"])
        if attempt == 0 and '"index": 1' in os.environ["TF_CONFIG"]:
            os.kill(os.getpid(), signal.SIGKILL)
        while attempt == 0:
            signal.pause()
        return attempt, os.environ["KERASDIST_WORKERS"]

    assert kerasdist.launch(train, num_workers=(1, 2)) == [(1, "1:2")]


def test_who_cannot_save_in_time_is_named(capsys):
    source = """
attempt == 0 and task == "worker 1" and (wait_for_all(), die())
attempt == 0 and train()
save(5)
if attempt == 1:
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(60))
    time.sleep(60)
"""
    result = kerasdist.launch(program(source), num_workers=(1, 2), resize_secs=0.5, grace_secs=0.5)

    assert (result.exit_code, result.num_restarts) == (0, 2)
    assert "worker 0 had not saved 0.5 s after TERM and was killed" in capsys.readouterr().out
