"""The programs of the application by their names, in a clone and where they are installed."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from models import __main__ as program
from models import programs

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def installed(monkeypatch):
    """Returns a module of the application as it is named where it is installed."""
    known = set(sys.modules)
    spec = importlib.util.spec_from_file_location("kerasdist_models", MODELS / "__init__.py")
    assert spec and spec.loader
    package = importlib.util.module_from_spec(spec)
    sys.modules["kerasdist_models"] = package
    spec.loader.exec_module(package)
    yield lambda name: importlib.import_module(f"kerasdist_models.{name}")
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == "kerasdist_models":
            del sys.modules[name]


def test_every_program_can_be_called_by_its_name():
    paths = [path for path in MODELS.rglob("*.py") if path.name != "__main__.py"]
    runnable = [path for path in paths if 'if __name__ == "__main__":' in path.read_text()]

    names = {".".join(path.relative_to(MODELS).with_suffix("").parts) for path in runnable}
    assert names == set(program.PROGRAMS)


def test_a_clone_has_modules_and_an_installation_has_a_command(installed):
    assert programs.words("export") == ["python", "-m", "models.export"]
    assert installed("programs").words("export") == ["kerasdist-models", "export"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("`python -m models.evaluate`", "`kerasdist-models evaluate`"),
        ("launch -- python -m models.train --x=1", "launch -- kerasdist-models train --x=1"),
        ("python -m models.recipes.lenet_digits.", "kerasdist-models recipes.lenet_digits."),
        ("flags of models.train are", "flags of kerasdist-models train are"),
        ("keras.models.load_model", "keras.models.load_model"),
        ("my_models.train", "my_models.train"),
    ],
)
def test_texts_name_the_command_that_there_is(text, told, installed):
    assert programs.as_called(text) == text
    assert installed("programs").as_called(text) == told


def test_the_command_lists_its_programs(capsys):
    assert program.main([]) == 0

    listed = capsys.readouterr().out
    assert listed.startswith("usage: python -m models.PROGRAM [FLAGS]")
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in program.PROGRAMS)


def test_the_command_runs_a_program(capsys):
    assert program.main(shlex.split("predict --bogus=1")) == 2

    assert "error: Unknown command line flag 'bogus'" in capsys.readouterr().err


def test_an_unknown_program_is_named_with_the_closest_one(capsys):
    assert program.main(["trian"]) == 2

    assert "error: There is no program 'trian'; did you mean 'train'?" in capsys.readouterr().err
