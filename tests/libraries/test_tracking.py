"""A tracker has one run, whatever the number of workers."""

import sqlite3

from tests.libraries.examples import example, needs, on_each, run


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


@on_each
@needs("codecarbon", "tensorboard")
def test_hparams_and_emissions_are_written_once(deployment, folder):
    run(example("HParams and codecarbon"), deployment)

    assert len(list(folder.glob("runs/sums/*tfevents*"))) == 1
    assert len((folder / "emissions.csv").read_text().splitlines()) == 2  # One below the names.
