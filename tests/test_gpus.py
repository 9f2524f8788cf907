"""`make test-gpu`: on logical CPUs it says all that it says on GPUs, and skips the rest by name."""

import itertools
import re
import subprocess
import sys

import pytest

from benchmarks import gpus

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1300)]


def table(*options):
    run = subprocess.run(
        [sys.executable, gpus.__file__, *options],
        capture_output=True,
        text=True,
        timeout=1250,
        check=True,
    )
    head, line, *rows = run.stdout.splitlines()
    assert (head, line) == ("| what | measured |", "|---|---|")
    return dict(row.strip("| ").split(" | ") for row in rows)


@pytest.mark.exhaustive
def test_every_part_is_measured_on_logical_cpus():
    rows = table("--cpus", "2", "--seconds", "1200")

    assert not [value for value in rows.values() if "FAILED" in value]
    assert rows["devices"].startswith("2 logical CPUs")
    assert rows["parity on two replicas (`doctor --quick`)"].startswith("11 of 11 rows")
    for network, jit in itertools.product(gpus.NETWORKS, ("XLA", "no XLA")):
        assert " ms" in rows[f"fit / plain Keras, {network}, {jit}"]
        rates = rows[f"examples/s by devices (efficiency), {network}, {jit}"]
        assert re.fullmatch(r"1: [\d,]+ \(1\.00\), 2: [\d,]+ \(\d\.\d\d\)", rates)
    assert rows["peak memory of a device"].startswith("skipped: ")
    assert "%" in rows["devices busy in three steps, convolutional"]


def test_what_the_machine_lacks_and_what_takes_too_long_is_told(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    rows = table("--part", "fit", "--seconds", "3000")
    ended = table("--part", "fit", "--cpus", "1", "--seconds", "2")

    assert rows == {"fit": gpus.NO_GPU}
    assert ended["fit"].startswith("FAILED: ended after 0.5 s")
