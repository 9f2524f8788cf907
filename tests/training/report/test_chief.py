"""What the chief alone does; the wait of the others for its files is in tests/cluster."""

import collections
import errno
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from kerasdist.callbacks import Every, OnChief
from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import key_value_store
from kerasdist.support import memory
from kerasdist.training.report import chief
from tests import strategies


def strategy_of_worker(index):
    jobs = {"worker": ["a:1", "b:1"]}
    return strategies.spanning(Cluster(jobs=jobs, task=Task("worker", index)))


def save(model, path):
    """Stands for Keras' own."""
    model.saved.append(path)


def in_every(callback):
    return Every(callback, steps=2)


def in_wrappers(callback):
    return OnChief(in_every(callback))


def test_the_chief_runs_all_callbacks_and_the_others_those_that_write_nothing(tmp_path):
    own = Every(keras.callbacks.Callback(), steps=2)
    bar = keras.callbacks.ProgbarLogger()
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "x.keras")
    callbacks = [checkpoint, in_wrappers(keras.callbacks.CSVLogger(tmp_path / "log.csv")), own, bar]

    assert chief.callbacks_for(callbacks, strategy_of_worker(0)) == callbacks
    assert chief.callbacks_for(callbacks, strategy_of_worker(1)) == [own]


@pytest.mark.parametrize("wrap", [lambda each: each, in_wrappers])
def test_the_others_restore_a_backup_and_make_none(tmp_path, wrap, monkeypatch):
    calls = []
    kind = keras.callbacks.BackupAndRestore
    monkeypatch.setattr(kind, "on_train_begin", lambda self, logs: calls.append("restore"))
    monkeypatch.setattr(kind, "on_epoch_end", lambda self, epoch, logs: calls.append("back up"))

    [callback] = chief.callbacks_for([wrap(kind(tmp_path))], strategy_of_worker(1))
    callback.on_train_begin()
    callback.on_epoch_end(0)

    assert calls == ["restore"]


@pytest.mark.parametrize("wrap", [lambda each: each, in_every])
def test_what_a_subclass_does_all_workers_do(tmp_path, wrap):
    epochs = []

    class Own(keras.callbacks.CSVLogger):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(epoch)
            super().on_epoch_end(epoch, logs)

    for index in (1, 0):
        [callback] = chief.callbacks_for([wrap(Own(tmp_path / "x.csv"))], strategy_of_worker(index))
        callback.set_model(None)
        callback.on_train_begin()
        callback.on_epoch_end(index)
        callback.on_train_end()
        assert (tmp_path / "x.csv").exists() == (index == 0)

    assert epochs == [1, 0]


@pytest.fixture
def posted(monkeypatch):
    """What was posted, by its name, of TensorFlow's coordination service."""
    texts = {}
    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    monkeypatch.setattr(key_value_store, "post", lambda notice: texts.setdefault(notice, "posted"))
    monkeypatch.setattr(key_value_store, "replace", texts.__setitem__)
    monkeypatch.setattr(
        key_value_store,
        "first_posted",
        lambda *names, **_: next((each for each in names if each in texts), None),
    )
    monkeypatch.setattr(
        key_value_store, "wait_for_text", lambda notice, timeout_secs: texts.get(notice)
    )
    return texts


def write(index, path="folder/m.keras", write_one=save):
    """Calls what stands before `save`, as a worker; returns what it has saved."""
    model: Any = SimpleNamespace(distribute_strategy=strategy_of_worker(index), saved=[])
    chief.write(write_one, model, path)
    return model.saved


LINE_OF_WRITE = inspect.getsourcelines(write)[1] + 3


def write_in_another_line(path):
    """Does the same on the chief alone."""
    model: Any = SimpleNamespace(distribute_strategy=strategy_of_worker(0), saved=[])
    chief.write(save, model, path)


def test_the_chief_writes_and_the_others_return_afterwards(posted, monkeypatch):
    assert write(0) == ["folder/m.keras"]
    assert list(posted) == [
        "`save` for 'm.keras' (call 1, outside `fit`) begins",
        "`save` for 'm.keras' (call 1, outside `fit`) ends",
        f"call 1 that writes in test_chief.py:{LINE_OF_WRITE}, outside `fit`, ends",
        "call 1 that writes outside `fit` ends",
    ]

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())  # Of another process.
    assert write(1, Path("folder/m.keras")) == []


def test_a_worker_that_names_another_path_writes_there_too(posted, monkeypatch):
    write(0)

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    assert write(1, "other folder/m.keras") == ["other folder/m.keras"]


def test_a_worker_that_names_another_file_writes_it(posted, monkeypatch):
    write(0, "saved")

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    assert write(1, "saved/worker_1") == ["saved/worker_1"]


def test_a_file_that_the_chief_writes_alone_is_not_taken_for_that_of_all(posted, monkeypatch):
    write(0, "best.keras")
    write(0)

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    assert write(1) == []


def test_a_worker_waits_for_a_chief_that_has_written_alone_before_and_is_late(posted, monkeypatch):
    write_in_another_line("best.keras")
    look, counts = key_value_store.first_posted, collections.Counter()

    def written_meanwhile(*names, timeout_secs, **arguments):
        assert timeout_secs == chief.BEGIN_SECS
        with monkeypatch.context() as patched:
            patched.setattr(memory.PROCESS, "num_written", counts)
            assert write(0) == ["folder/m.keras"]
        return look(*names, timeout_secs=timeout_secs)

    counts.update(memory.PROCESS.num_written)
    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    monkeypatch.setattr(key_value_store, "first_posted", written_meanwhile)
    assert write(1) == []


def test_a_worker_that_has_a_line_of_its_own_writes_in_the_end(posted, monkeypatch):
    write_in_another_line("saved")

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    with pytest.warns(UserWarning, match=r"waited 60 s for the chief.* in the same line"):
        assert write(1, "saved/worker_1") == ["saved/worker_1"]


def test_a_worker_writes_what_it_names_where_the_chief_has_gone(monkeypatch):
    def first_posted(*names, **arguments):
        raise tf.errors.UnavailableError(None, None, "Connection reset by peer")

    monkeypatch.setattr(key_value_store, "first_posted", first_posted)
    assert write(1, "saved/worker_1") == ["saved/worker_1"]


def test_a_worker_that_works_in_another_folder_writes_there_too(posted, monkeypatch, tmp_path):
    write(0, "m.keras")

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    monkeypatch.chdir(tmp_path)
    assert write(1, "m.keras") == ["m.keras"]


def test_what_the_chief_raises_the_others_raise_at_once(posted, monkeypatch):
    def fail(model, path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(fail, "__name__", "save")
    with pytest.raises(PermissionError):
        write(0, write_one=fail)

    monkeypatch.setattr(memory.PROCESS, "num_written", collections.Counter())
    says = r"the chief failed in `save` for 'm.keras' .*: PermissionError: .*Permission denied"
    with pytest.raises(PermissionError, match=says):
        write(1)


@pytest.mark.parametrize(("last_notice", "what"), [("", "called"), ("begins", "ended")])
def test_a_worker_that_waits_in_vain_for_the_chief_warns_and_writes_nothing(
    posted, last_notice, what
):
    posted[f"`save` for 'm.keras' (call 1, outside `fit`) {last_notice}"] = "posted"
    says = f"worker 1 waited .* s for the chief.* The chief has not {what} `save` for 'm.keras'"
    with pytest.warns(UserWarning, match=says):
        assert write(1) == []
