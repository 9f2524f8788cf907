"""Whatever is damaged, a program ends with one line that names it: no traceback, no hang."""

import functools
import os
import signal
import time
from pathlib import Path

import pytest

from models.usage_error import printable
from tests import fork_server
from tests.models.damage import runner
from tests.models.damage.attempts import Attempt
from tests.models.damage.runner import Outcome

SEED = 20


@pytest.mark.processes
@pytest.mark.parametrize(
    "numbers",
    [
        range(50),
        *(
            pytest.param(range(begin, begin + 150), marks=pytest.mark.exhaustive)
            for begin in (50, 200, 350)
        ),
    ],
    ids=lambda numbers: f"{numbers[0]} to {numbers[-1]}",
)
def test_what_is_damaged_is_named(numbers, tmp_path):
    wrong = fork_server.call(functools.partial(runner.run_all, SEED, numbers, tmp_path))

    assert not wrong, "\n\n".join(wrong)


def attempt_of(call):
    def run(random, whole):
        return Attempt(run=call)

    return run


def raises():
    raise KeyError("layers")


def unprepared(random, whole):
    raise FileNotFoundError("nowhere/file")


BAD = [
    attempt_of(lambda: 0),
    attempt_of(lambda: time.sleep(60) or 0),
    attempt_of(raises),
    attempt_of(lambda: os.kill(os.getpid(), signal.SIGABRT) or 0),
    unprepared,
    attempt_of(lambda: 0),
]


@pytest.mark.processes
def test_one_that_hangs_or_ends_the_process_is_told_and_the_next_ones_are_made(tmp_path):
    run = functools.partial(runner.run_all, 0, range(6), tmp_path, kinds=BAD, write=Path.mkdir)

    hangs, raised, dies, other = fork_server.call(functools.partial(run, secs=4.0))

    assert hangs == "1 of seed 0: takes longer than 4 s"
    assert raised.startswith("2 of seed 0: run raises what it should explain")
    assert raised.endswith("KeyError: 'layers'\n")
    assert dies == f"3 of seed 0: ends the process with {signal.SIGABRT:d}"
    assert other.startswith("4 of seed 0: Traceback")
    assert other.endswith("FileNotFoundError: nowhere/file\n")


LINE = "error: --dataset_name 'birds': record 1 (from 0) of a.tfrecord cannot be read: corrupted.\n"


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "told"),
    [
        (1, "", LINE, ""),
        (0, "as it should be", "", ""),
        (None, "", LINE, "raises"),
        (1, "", f"Traceback (most recent call last):\n{LINE}", "raises"),
        (2, "", LINE, "has the exit code 2"),
        (1, "\x1b[2J", LINE, "steers the terminal"),
        (0, "other images", "", "takes for whole"),
        (1, "", "", "explains itself in 0 lines"),
        (1, "", LINE + LINE, "explains itself in 2 lines"),
        (1, "", LINE.replace("corrupted", "{{node Map}}"), "shows internals"),
        (1, "", LINE.replace("a.tfrecord", "it"), "does not name a.tfrecord"),
        (1, "", "error: Label 7 of example 3 (from 0, in the stored order) is no class.\n", ""),
    ],
)
def test_each_wrong_end_is_told(code, stdout, stderr, told):
    def silent(stdout, _):
        return "" if stdout == "as it should be" else stdout

    attempt = Attempt(run=lambda: 0, damaged="a.tfrecord", codes=(1,), silent=silent)

    verdict = runner.verdict(attempt, Outcome(code=code, stdout=stdout, stderr=stderr))

    assert verdict.startswith(told)
    assert bool(verdict) == bool(told)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("jay.png", "jay.png"),
        ("geai à tête bleue.png", "geai à tête bleue.png"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("a\nb\u2028c", r"a\nb\u2028c"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("caf\udce9", r"caf\udce9"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_a_name_is_shown_in_one_line_that_steers_no_terminal(name, shown):
    assert printable(name) == shown
    assert printable(shown) == shown
