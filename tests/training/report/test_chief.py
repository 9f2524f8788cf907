"""What the chief alone does; the wait of the others for its files is in tests/cluster."""

from types import SimpleNamespace

import keras
import pytest

from kerasdist.callbacks import Every, OnChief
from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import notices
from kerasdist.training.report import chief


def strategy_of_worker(index):
    jobs = {"worker": ["a:1", "b:1"]}
    return SimpleNamespace(cluster=Cluster(jobs=jobs, task=Task("worker", index)))


def save(model, path):
    """Stands for Keras' own."""
    model.saved.append(path)


def in_wrappers(callback):
    return OnChief(Every(callback, steps=2))


def test_the_chief_runs_all_callbacks_and_the_others_those_that_write_nothing(tmp_path):
    own = Every(keras.callbacks.Callback(), steps=2)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "x.keras")
    callbacks = [checkpoint, in_wrappers(keras.callbacks.CSVLogger(tmp_path / "log.csv")), own]

    assert chief.callbacks_for(callbacks, strategy_of_worker(0)) == callbacks
    assert chief.callbacks_for(callbacks, strategy_of_worker(1)) == [own]


@pytest.mark.parametrize("wrap", [lambda each: each, in_wrappers])
def test_the_others_restore_a_backup_and_make_none(tmp_path, wrap):
    calls = []

    class Backup(keras.callbacks.BackupAndRestore):
        def on_train_begin(self, logs=None):
            calls.append("restore")

        def on_epoch_end(self, epoch, logs=None):
            calls.append("back up")

    [callback] = chief.callbacks_for([wrap(Backup(tmp_path))], strategy_of_worker(1))
    callback.on_train_begin()
    callback.on_epoch_end(0)

    assert calls == ["restore"]


def test_the_chief_posts_before_and_after_it_writes(monkeypatch):
    posted = []
    monkeypatch.setattr(notices, "post", posted.append)
    model = SimpleNamespace(distribute_strategy=strategy_of_worker(0), saved=posted)

    chief.write(save, model, "folder/the model")

    begins, path, ends = posted
    assert path == "folder/the model"
    assert begins.endswith("of 'the model' outside of `fit` begins")
    assert ends == begins.replace("begins", "ends")


@pytest.mark.parametrize("last_notice", ["", "begins"])
def test_a_worker_that_waits_in_vain_for_the_chief_warns_and_writes_nothing(
    monkeypatch, last_notice
):
    monkeypatch.setattr(
        notices, "is_posted", lambda notice, **_: bool(last_notice) and notice.endswith(last_notice)
    )
    model = SimpleNamespace(distribute_strategy=strategy_of_worker(1), saved=[])

    with pytest.warns(UserWarning, match="worker 1 waited for the chief.*'x'"):
        chief.write(save, model, "x")

    assert model.saved == []
