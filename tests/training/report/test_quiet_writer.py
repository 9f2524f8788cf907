"""Subclasses of Keras' callbacks that write, where nothing is written.

Over a cluster: cluster/test_own_callbacks.
"""

from typing import Any

import keras
import numpy as np
import pytest

from kerasdist.training.report import quiet_writer
from kerasdist.training.report.callback_list import is_overridden

X = np.ones((6, 2), "float32")


class Scored(keras.callbacks.Callback):
    """Adds to the logs what the callbacks after it, and the history, have too."""

    def on_epoch_end(self, epoch, logs: Any = None):
        logs["score"] = epoch + 0.5
        super().on_epoch_end(epoch, logs)


class Rows(Scored, keras.callbacks.CSVLogger):
    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        print("# scores", file=self.csv_file)


class Scalars(Scored, keras.callbacks.TensorBoard):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        with self._val_writer.as_default():
            self.summary.scalar("own", 1.0, step=epoch)


class Backup(Scored, keras.callbacks.BackupAndRestore):
    pass


def fit(*callbacks) -> keras.callbacks.History:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(2, 1)])
    model.compile("sgd", "mse")
    return model.fit(X, X[..., None], epochs=2, verbose=0, callbacks=list(callbacks))


MAKERS = {
    "CSVLogger": lambda folder: Rows(folder / "log.csv"),
    "TensorBoard": lambda folder: Scalars(
        folder / "events", histogram_freq=1, update_freq=1, embeddings_freq=1, profile_batch=1
    ),
    "BackupAndRestore": lambda folder: Backup(folder / "backup"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_the_users_own_runs_and_nothing_is_written(tmp_path, make):
    callback = make(tmp_path)
    quiet_writer.quieten(callback)

    assert fit(callback).history["score"] == [0.5, 1.5]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_class_is_still_that_of_the_user(tmp_path, make):
    callback = make(tmp_path)
    kind = type(callback)
    quiet_writer.quieten(callback)
    quiet_writer.quieten(callback)  # In a second `fit`.

    assert isinstance(callback, kind)
    assert (type(callback).__name__, type(callback).__module__) == (kind.__name__, kind.__module__)
    assert type(callback).__mro__.count(kind) == 1
    assert "Quiet" not in repr(callback)


def test_a_logger_has_the_attributes_of_keras_own(tmp_path):
    quiet, stock = Rows(tmp_path / "quiet.csv"), Rows(tmp_path / "stock.csv")
    quiet_writer.quieten(quiet)
    fit(quiet)
    fit(stock)

    assert quiet.keys == stock.keys
    assert quiet.filename == str(tmp_path / "quiet.csv")


def test_the_hooks_of_a_tensorboard_cost_nothing_in_a_step(tmp_path):
    callback = Scalars(tmp_path)
    assert is_overridden(callback, "on_train_batch_end")

    quiet_writer.quieten(callback)

    assert not is_overridden(callback, "on_train_batch_end")
    assert callback.write_graph


def test_a_class_may_have_slots_and_be_made_of_several(tmp_path, monkeypatch):
    class Both(Rows, keras.callbacks.TensorBoard):
        __slots__ = ("seen",)

    monkeypatch.chdir(tmp_path)
    callback = Both("log.csv")
    callback.seen = 3
    quiet_writer.quieten(callback)
    fit(callback)

    assert callback.seen == 3
    assert not list(tmp_path.iterdir())


def test_a_class_that_asks_its_subclasses_for_something_does_not_see_this_one(tmp_path):
    kinds = []

    class Named(keras.callbacks.CSVLogger):
        def __init_subclass__(cls, *, name):
            kinds.append(name)

    class Own(Named, name="own"):
        pass

    callback = Own(tmp_path / "log.csv")
    quiet_writer.quieten(callback)

    assert kinds == ["own"]
    assert isinstance(callback, Own)
