"""A tracker has one run, whatever the number of workers, and after a restart."""

import sqlite3
from pathlib import Path

import pytest

from tests.libraries.examples import example, needs, on_each, run, run_alone

KILLED_ONCE = """
import os
import signal
from pathlib import Path

import keras


class KillOnce(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""
LAUNCH = """
import sys

import kerasdist

kerasdist.launch([sys.executable, "train.py"], num_workers=2, max_restarts=1)
"""


def run_killed_once(program):
    """Runs a program on two workers, of which the chief is killed in the third of four epochs."""
    begin = "model.fit(x, x.sum(axis=1), epochs=2, "
    assert program.count(begin) == 1
    killed = f"callbacks += [KillOnce()] if kerasdist.is_chief() else []\n{begin}"
    program = program.replace(begin, killed.replace("epochs=2", "epochs=4"))
    Path("train.py").write_text(f"{KILLED_ONCE}\n{program}")
    run_alone(LAUNCH)
    assert Path("killed").exists()


@on_each
@needs("mlflow")
def test_mlflow_has_one_run_with_the_logs_of_each_epoch(deployment):
    losses = run(example("MLflow"), deployment, result="model.history.history['loss']")[0]

    with sqlite3.connect("mlflow.db") as database:
        runs = database.execute("select status from runs").fetchall()
        logged = database.execute("select value from metrics where key = 'loss' order by step")
        assert [value for (value,) in logged] == losses
    assert runs == [("FINISHED",)]


@on_each
@needs("wandb")
def test_wandb_has_one_run(deployment, folder):
    run(example("Weights & Biases"), deployment)

    assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.thorough
@needs("mlflow")
def test_mlflow_goes_on_with_the_run_of_the_job_after_a_restart():
    run_killed_once(example("MLflow"))

    with sqlite3.connect("mlflow.db") as database:
        runs = database.execute("select status from runs").fetchall()
        logged = database.execute("select step from metrics where key = 'loss' order by step")
        assert [step for (step,) in logged] == [0, 1, 2, 3]
    assert runs == [("FINISHED",)]


@pytest.mark.thorough
@needs("wandb")
def test_wandb_goes_on_with_the_run_of_the_job_after_a_restart(folder):
    run_killed_once(example("Weights & Biases"))

    files = list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2  # One for each start.
    assert len({each.name for each in files}) == 1  # It is the run's id.


@on_each
@needs("codecarbon", "tensorboard")
def test_hparams_and_emissions_are_written_once(deployment, folder):
    run(example("HParams and codecarbon"), deployment)

    assert len(list(folder.glob("runs/sums/*tfevents*"))) == 1
    assert len((folder / "emissions.csv").read_text().splitlines()) == 2  # One below the names.
