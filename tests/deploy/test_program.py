"""The program that the files of deploy/ start."""

from pathlib import Path

import pytest

from tests.fork_server import run_cluster

PROGRAM = Path(__file__).parents[2] / "deploy/train.py"


@pytest.mark.processes
def test_it_trains_on_several_workers_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    texts = []
    for epochs in ("1", "2"):
        monkeypatch.setenv("EPOCHS", epochs)
        tasks = run_cluster(PROGRAM, num_workers=2)
        assert [each.exit_code for each in tasks] == [0, 0], tasks[0].output
        texts.append(tasks[0].output)

    assert "Epoch 2/2" in texts[1] and "Epoch 1/2" not in texts[1]
