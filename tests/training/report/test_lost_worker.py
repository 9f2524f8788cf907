"""What a `fit` that cannot be resumed says where its job goes on without a lost worker."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.support import environment, memory


def lines_of(caplog, monkeypatch, callbacks, *, workers="1:4", num_fits=1):
    """Returns the lines that calls of `fit` in a launch log."""
    monkeypatch.setattr(memory.PROCESS, "said", set())
    if workers:
        monkeypatch.setenv(environment.WORKERS, workers)
    with kerasdist.make_strategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    caplog.clear()
    for _ in range(num_fits):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=callbacks)
    return [each.message for each in caplog.records if "loses a worker" in each.message]


def test_it_is_said_once_what_the_loss_of_a_worker_costs(caplog, monkeypatch):
    (line,) = lines_of(caplog, monkeypatch, [keras.callbacks.TerminateOnNaN()], num_fits=2)

    assert line.endswith("has no Checkpoint. Give it kerasdist.callbacks.Checkpoint(directory).")


@pytest.mark.parametrize(
    "make",
    [kerasdist.callbacks.Checkpoint, keras.callbacks.BackupAndRestore],
    ids=lambda make: make.__name__,
)
def test_nothing_is_said_where_it_resumes(make, caplog, monkeypatch, tmp_path):
    assert not lines_of(caplog, monkeypatch, [make(tmp_path / "run")])


def test_nothing_is_said_where_the_number_of_workers_is_fixed(caplog, monkeypatch):
    assert not lines_of(caplog, monkeypatch, [], workers="")
