"""The version of a kerasdist that was not installed, as a folder on PYTHONPATH."""

import importlib.metadata

import pytest

import kerasdist
from kerasdist import __main__ as command
from kerasdist.strategies.make_strategy import _facts


def test_a_folder_on_the_path_can_join_a_cluster_and_be_reported(monkeypatch, capsys):
    version = importlib.metadata.version

    def without_ours(name):
        if name == "kerasdist":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_ours)

    with pytest.raises(SystemExit):
        command.main(["--version"])

    assert capsys.readouterr().out.startswith("kerasdist (not installed), Keras ")
    assert _facts("1")["kerasdist"] == "not installed"
    assert not hasattr(kerasdist, "__version__")
