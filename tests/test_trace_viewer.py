"""What a person needs to look at a trace."""

import importlib.metadata

import pytest

from kerasdist.trace import viewer


@pytest.mark.parametrize(
    ("installed", "advice"),
    [
        ({"tensorboard": "2.21", "xprof": "2.24.2"}, "run tensorboard --logdir"),
        ({"tensorboard": "2.21"}, "pip install xprof"),
        ({}, "pip install tensorboard xprof"),
        (
            {"tensorboard": "2.21", "tensorboard-plugin-profile": "2.19.8"},
            "tensorboard-plugin-profile 2.19.8 is too old: pip install xprof",
        ),
    ],
)
def test_what_is_missing_or_too_old_is_named(monkeypatch, installed, advice):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)

    assert viewer.ways_to_look("lr 0.1/a").startswith("python -m kerasdist trace 'lr 0.1/a', or ")
    text = viewer.ways_to_look("runs/1/tf_trace-60.json")
    assert text.startswith("python -m kerasdist trace runs/1/tf_trace-60.json, or ")
    assert text.endswith(f"profile tab {advice}" if "run" not in advice else "folder of the run")
