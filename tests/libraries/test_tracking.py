"""A tracker has one run, whatever the number of workers."""

import sqlite3

from tests.libraries.examples import example, needs, on_each, run


@on_each
@needs("mlflow")
def test_mlflow_has_one_run_with_the_logs_of_each_epoch(deployment):
    run(example("MLflow"), deployment)

    with sqlite3.connect("mlflow.db") as database:
        runs = database.execute("select status from runs").fetchall()
        losses = database.execute("select step from metrics where key = 'loss'").fetchall()
    assert runs == [("FINISHED",)]
    assert losses == [(0,), (1,)]


@on_each
@needs("wandb")
def test_wandb_has_one_run(deployment, folder):
    run(example("Weights & Biases"), deployment)

    assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1
