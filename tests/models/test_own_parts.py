"""A net, a preprocessing and a dataset of one's own: the page about them works as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from models import datasets, evaluate, nets, preprocessing, train
from models.usage_error import UsageError

PAGE = Path(__file__).parents[2] / "docs/own_parts.md"


def block(language):
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


@pytest.mark.thorough
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_parts.py").write_text(block("python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    make, *commands = block("bash").replace("\\\n", "").splitlines()
    assert make == "mkdir -p data"
    (tmp_path / "data").mkdir()

    for command, module in zip(commands, (train, evaluate), strict=True):
        python, argv = shlex.split(command)[:3], shlex.split(command)[3:]
        assert python == ["python", "-m", module.__name__]
        assert module.main(argv) == 0

    told = capsys.readouterr().out
    assert "on 16 examples of my_parts:stripes, split test" in told
    assert (tmp_path / "runs/stripes/labels.txt").read_text() == "0:horizontal\n1:vertical\n"


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
