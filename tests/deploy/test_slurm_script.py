"""What the script for Slurm makes of exit codes, with an `srun` and a `scontrol` of the test.

The real ones run it in tests/schedulers.
"""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/slurm.sh"
# Two tasks, one after the other; as the real one, it ends with the highest of their codes.
SRUN = """#!/usr/bin/env bash
shift
worst=0
for rank in 0 1; do
  SLURM_PROCID=$rank "$@"
  code=$?
  ((code > worst)) && worst=$code
done
exit $worst
"""
# In place of Python: ends with the code of its rank.
PYTHON = """#!/usr/bin/env bash
codes=($CODES)
exit "${codes[$SLURM_PROCID]}"
"""


def run(folder: Path, codes: str, *, num_restarts: int = 0) -> tuple[int, bool]:
    """Returns the exit code of the job, and whether it was put into the queue again."""
    programs = {"srun": SRUN, "python": PYTHON, "scontrol": '#!/bin/sh\necho "$@" > requeued\n'}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(num_restarts),
        "CODES": codes,
    }
    code = subprocess.run(
        ["bash", SCRIPT], cwd=folder, env=environ, stdout=subprocess.DEVNULL
    ).returncode
    requeued = folder / "requeued"
    return code, requeued.exists() and requeued.read_text() == "requeue 7\n"


def test_its_syntax_is_that_of_bash():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


@pytest.mark.parametrize(
    ("codes", "code", "is_again"),
    [
        ("0 0", 0, False),
        ("143 143", 143, True),
        ("138 137", 138, True),
        ("1 138", 1, False),  # The code of the others is higher.
        ("138 2", 2, False),
        ("127 127", 127, False),
        ("124 0", 124, False),
    ],
)
def test_it_runs_again_what_is_worth_a_retry(tmp_path, codes, code, is_again):
    assert run(tmp_path, codes) == (code, is_again)


def test_it_does_not_run_again_for_ever(tmp_path):
    assert run(tmp_path, "138 138", num_restarts=20) == (138, False)


def test_an_error_of_an_earlier_start_is_forgotten(tmp_path):
    run(tmp_path, "1 138")

    assert run(tmp_path, "143 143", num_restarts=1) == (143, True)
