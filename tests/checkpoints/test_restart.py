"""What a program that is started again, in a folder with checkpoints, finds and says."""

import os

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint
from tests import strategies


def make_model(learning_rate=0.01):
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model


def train(folder, *callbacks, epochs=2, model=None, learning_rate=0.01):
    """Trains for epochs of 2 steps; returns the Checkpoint."""
    checkpoint = Checkpoint(folder)
    model = model or make_model(learning_rate)
    x = np.ones((8, 2), "float32")
    fit = {"batch_size": 4, "epochs": epochs, "verbose": 0}
    model.fit(x, x[:, :1], callbacks=[checkpoint, *callbacks], **fit)
    return checkpoint


class Best(keras.callbacks.Callback):
    """Has a state of another kind as soon as it has seen an epoch."""

    def on_train_begin(self, logs=None):
        self.rows: list = []

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch})

    def get_state(self):
        return {"rows": self.rows}

    def set_state(self, state):
        raise AssertionError


def test_a_state_that_cannot_be_kept_does_not_cost_the_checkpoint(tmp_path):
    with pytest.warns(UserWarning, match="do not hold the state of Best"):
        train(tmp_path, Best())
        again = train(tmp_path, Best(), epochs=3)

    assert again.resumed_from == str(tmp_path / "step-00000004")


def test_a_state_without_a_callback_is_named(capsys, tmp_path):
    train(tmp_path, keras.callbacks.EarlyStopping("loss"))

    train(tmp_path, epochs=3)

    assert "The state of EarlyStopping in " in capsys.readouterr().err


def test_a_folder_is_not_for_several_models_of_a_process(capsys, tmp_path):
    checkpoint = train(tmp_path)
    again, x = make_model(), np.ones((8, 2), "float32")
    before = again.get_weights()

    with pytest.raises(ValueError, match="of another model, which this Checkpoint has seen"):
        again.fit(x, x[:, :1], verbose=0, callbacks=[checkpoint])
    train(tmp_path)  # As a cell of a notebook that is run once more, or another fold.

    np.testing.assert_array_equal(again.get_weights()[0], before[0])
    assert "This process has trained another model there" in capsys.readouterr().err


class BaseRate(keras.callbacks.Callback):
    """Decays the rate that it finds when `fit` begins, as Horovod's callbacks do."""

    def on_train_begin(self, logs=None):
        self.base = float(self.model.optimizer.learning_rate)

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.base * 0.5**epoch


def test_when_fit_begins_callbacks_see_the_learning_rate_of_compile(capsys, tmp_path):
    train(tmp_path, BaseRate())
    base, model = BaseRate(), make_model()

    train(tmp_path, base, epochs=3, model=model)

    assert base.base == pytest.approx(0.01)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0025)
    assert "learning rate" not in capsys.readouterr().err


def test_a_learning_rate_that_compile_has_changed_is_named(capsys, tmp_path):
    train(tmp_path, keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2))
    model = make_model(0.25)

    train(tmp_path, epochs=3, model=model)

    assert float(model.optimizer.learning_rate) == pytest.approx(0.0025)
    assert (
        "The training goes on with the learning rate 0.0025 of the checkpoint. `compile` sets "
        "0.25 now, and set 0.01 when the training began."
    ) in capsys.readouterr().err


def test_the_folder_stays_where_it_is_if_a_callback_changes_the_working_directory(
    monkeypatch, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    train("run", keras.callbacks.LambdaCallback(on_train_begin=lambda logs: os.chdir("elsewhere")))

    assert sorted(os.listdir(tmp_path / "run")) == ["step-00000002", "step-00000004"]
    assert Checkpoint("gs://bucket/run").directory == "gs://bucket/run"
