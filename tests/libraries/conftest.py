"""Each test has a folder of its own, since the examples write beside themselves."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder of the test, where there is nothing yet."""
    monkeypatch.chdir(tmp_path)
    # Not tests/lean, which hides packages that these libraries need.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path
