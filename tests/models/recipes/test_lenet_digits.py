"""The demonstration, as a person runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.processes
def test_lenet_learns_the_digits_on_two_replicas_and_says_what_it_did(tmp_path):
    # A process of its own: TensorFlow makes two CPUs out of one only before it starts.
    run = subprocess.run(
        [sys.executable, "-m", "models.recipes.lenet_digits"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    (accuracy,) = re.findall(r"Test accuracy: (0\.\d+) \(360 examples\)", run.stdout)
    assert float(accuracy) >= 0.97
    assert "2 copies of the model" in run.stdout
    assert "examples/s" in run.stdout
    assert "python -m models.evaluate --checkpoint_path=runs/lenet_digits" in run.stdout
    results = {path.name for path in (tmp_path / "runs/lenet_digits").iterdir()}
    assert results == {
        "checkpoints",
        "labels.txt",
        "learning_curve.png",
        "model.keras",
        "samples.png",
        "train",
        "validation",
    }
