"""The progress of a `fit`, as a TrainJob shows it."""

import keras
import numpy as np
import pytest

from kerasdist.callbacks import KubeflowProgress
from kerasdist.lifetime import process_end
from kerasdist.status import kubeflow
from kerasdist.training.context import peers
from tests import strategies
from tests.status.kubeflow_server import Server

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")


def fit(epochs=2, **arguments):
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = [KubeflowProgress()]
    return model.fit(
        X, X.sum(axis=1), batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks, **arguments
    ).history


@pytest.fixture
def server(monkeypatch):
    with Server().serving() as server:
        monkeypatch.setenv(kubeflow.URL, server.url)
        yield server


@pytest.fixture
def ends(monkeypatch):
    """What is called when the process ends."""
    found = []
    monkeypatch.setattr(process_end, "at_end", found.append)
    return found


def test_a_trainjob_shows_the_end_of_the_training(server, ends):
    losses = fit(validation_split=0.25)["val_loss"]
    fit(epochs=1)  # Of the same process: there is one report at a time.
    (finish,) = ends
    finish()
    reports = []
    while not server.reports.empty():
        reports.append(server.take()[1])

    assert 2 <= len(reports) <= 4
    assert reports[-1]["progressPercentage"] == 100
    assert reports[-1]["estimatedRemainingSeconds"] == 0
    metrics = {each["name"]: each["value"] for each in reports[-1]["metrics"]}
    assert (metrics["step"], metrics["epoch"]) == ("4", "1")
    assert set(metrics) >= {"loss", "examples_per_second"}
    assert losses


def test_the_chief_alone_reports(server, ends, monkeypatch):
    monkeypatch.setattr(peers, "is_chief", lambda strategy: False)
    fit()

    assert ends == []
    assert server.reports.empty()


def test_outside_of_kubeflow_a_line_says_that_nothing_is_reported(ends, caplog, monkeypatch):
    monkeypatch.delenv(kubeflow.URL, raising=False)
    fit()

    assert "KubeflowProgress reports nothing: KUBEFLOW_TRAINER_SERVER_URL is not set" in caplog.text
    assert ends == []


def test_a_model_without_a_strategy_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    with pytest.raises(RuntimeError, match="KubeflowProgress cannot act on model"):
        model.fit(X, X.sum(axis=1), verbose=0, callbacks=[KubeflowProgress()])
