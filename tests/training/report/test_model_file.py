"""Keras' own files of a model of ours are whole, whatever ends their writer."""

import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.saving import save_model, save_weights

from kerasdist.training.report import model_file
from tests import strategies
from tests.cases import marked
from tests.full_disk import files_of_at_most

FILES = ("model.keras", "model.weights.h5")


class Breaks(keras.layers.Dense):
    """A layer whose weights end the writer."""

    how = None

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.how is not None:
            self.how()


def make_model(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64), Breaks(64), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    return model


def save(model, path):
    (model.save if path.suffix == ".keras" else model.save_weights)(path)


def weights_in(path, strategy):
    model = make_model(strategy)
    model.load_weights(path)
    return model.get_weights()


@pytest.fixture
def one_device():
    return strategies.get("one device")


@pytest.mark.parametrize(
    ("save", "name"),
    [
        *[(save, name) for name in FILES],
        (save_model, "model.keras"),
        (save_weights, "model.weights.h5"),
    ],
)
def test_an_error_in_a_save_leaves_the_earlier_file(save, name, one_device, tmp_path, monkeypatch):
    path, model = tmp_path / name, make_model(one_device)
    save(model, path)
    before = model.get_weights()

    def fail():
        raise RuntimeError("in the middle")

    monkeypatch.setattr(Breaks, "how", staticmethod(fail))
    model.set_weights([each + 1 for each in before])
    with pytest.raises(RuntimeError, match="in the middle"):
        save(model, path)

    assert os.listdir(tmp_path) == [name]
    for ours, theirs in zip(weights_in(path, one_device), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_leaves_the_earlier_file(name, one_device, tmp_path):
    path, model = tmp_path / name, make_model(one_device)
    save(model, path)
    before = path.read_bytes()

    model.set_weights([each + 1 for each in model.get_weights()])
    with files_of_at_most(10_000), pytest.raises(OSError, match="File too large"):
        save(model, path)

    assert os.listdir(tmp_path) == [name]
    assert path.read_bytes() == before


@pytest.mark.processes
@pytest.mark.parametrize("name", marked(FILES, exhaustive={"model.weights.h5"}))
def test_a_kill_in_a_save_leaves_the_earlier_file(name, one_device, tmp_path):
    path = tmp_path / name
    program = f"""
from tests.training.report.test_model_file import *
model, path = make_model(strategies.get("one device")), {str(path)!r}
from pathlib import Path
model.set_weights([each * 0 + 1 for each in model.get_weights()])
save(model, Path(path))
Breaks.how = staticmethod(lambda: os.kill(os.getpid(), signal.SIGKILL))
model.set_weights([each * 0 + 2 for each in model.get_weights()])
save(model, Path(path))
"""
    killed = subprocess.run([sys.executable, "-c", program], timeout=120)

    assert killed.returncode == -signal.SIGKILL
    for each in weights_in(path, one_device):
        np.testing.assert_array_equal(each, np.ones_like(each))


@pytest.mark.parametrize("name", [*FILES, "model.h5"])
@pytest.mark.parametrize("is_method", [True, False])
def test_a_file_is_written_once(is_method, name, one_device, tmp_path, monkeypatch):
    functions = (save_model, save_weights)
    if is_method:
        functions = (keras.Model.save, keras.Model.save_weights)
    model, written = make_model(one_device), []
    whole = model_file.whole_file
    monkeypatch.setattr(model_file, "whole_file", lambda path: written.append(path) or whole(path))

    functions[name.endswith(".weights.h5")](model, tmp_path / name)

    assert written == [str(tmp_path / name)]


def test_what_keras_refuses_it_still_refuses(one_device, tmp_path):
    model = make_model(one_device)

    with pytest.raises(ValueError, match="Invalid filepath extension"):
        model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"must end in `\.weights\.h5`"):
        model.save_weights(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="not supported"):
        model.save(tmp_path / "model.keras", speed=2)
    with pytest.raises(TypeError):
        model.save()
    with pytest.raises(FileNotFoundError, match=r"absent/model\.keras"):
        model.save(tmp_path / "absent/model.keras")
    assert os.listdir(tmp_path) == []


def test_shards_and_folders_are_keras_own_affair(one_device, tmp_path):
    model = make_model(one_device)

    model.save_weights(tmp_path / "shards.weights.json", max_shard_size=1)
    model.save(tmp_path / "folder", zipped=False)

    assert (tmp_path / "shards.weights.json").is_file()
    assert (tmp_path / "folder/config.json").is_file()
