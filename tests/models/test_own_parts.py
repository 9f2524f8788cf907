"""A net, a preprocessing and a dataset of one's own: the page about them works as it stands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from models import datasets, evaluate, nets, preprocessing, train
from models.usage_error import UsageError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/own_parts.md"


def block(language):
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


def commands():
    """Returns the program of each command, and its flags."""
    make, *lines = block("bash").replace("\\\n", "").splitlines()
    assert make == "mkdir -p data"
    words = [shlex.split(line) for line in lines]
    assert all(each[:2] == ["python", "-m"] for each in words)
    return [(name, argv) for _, _, name, *argv in words]


@pytest.mark.thorough
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_parts.py").write_text(block("python"))
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    for (name, argv), module in zip(commands(), (train, evaluate), strict=True):
        assert name == module.__name__
        assert module.main(argv) == 0

    told = capsys.readouterr().out
    assert "on 16 examples of my_parts:stripes, split test" in told
    assert (tmp_path / "runs/stripes/labels.txt").read_text() == "0:horizontal\n1:vertical\n"


@pytest.mark.processes
@pytest.mark.thorough
def test_the_page_runs_with_the_wheel(tmp_path):
    imported = "from models.datasets import Dataset"
    other = imported.replace("models", "kerasdist_models")
    calls = [(name.replace("models.", "kerasdist-models "), argv) for name, argv in commands()]
    assert all(f"`{each}`" in PAGE.read_text() for each in (other, *(name for name, _ in calls)))
    source = block("python").replace(imported, other)
    assert "kerasdist_models" in source
    (tmp_path / "my_parts.py").write_text(source)
    (tmp_path / "data").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site/kerasdist_models").symlink_to(ROOT / "models")

    program = "import sys; from kerasdist_models.__main__ import main\n"
    for name, argv in calls:
        program += f"sys.argv = {[*name.split(), *argv]}; assert main() == 0\n"
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],  # As a script, without the folder where it runs.
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}/site:{ROOT}"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "on 16 examples of my_parts:stripes, split test" in result.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:net", "--model_name 'nowhere:net' cannot be imported: No module named 'nowhere'"),
        ("models.nets:bild", "'models.nets:bild' cannot be imported: module 'models.nets' has no"),
        ("lenet:3.0.1", "Unknown --model_name 'lenet:3.0.1'."),
        ("models.nets:ABSENT", "--model_name 'models.nets:ABSENT' must be a function."),
    ],
)
def test_what_cannot_be_imported_is_a_mistake(name, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        nets.find(name)


def test_the_other_flags_are_named_as_well(tmp_path):
    with pytest.raises(UsageError, match=r"^--preprocessing_name 'nowhere:a' cannot be imported"):
        preprocessing.find("nowhere:a")
    with pytest.raises(UsageError, match=r"^--dataset_name 'nowhere:a' cannot be imported"):
        datasets.load("nowhere:a", split=None, data_dir=tmp_path)
