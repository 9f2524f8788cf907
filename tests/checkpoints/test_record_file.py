"""A checkpoint that was changed by hand, with the sums made right, is not gone on from."""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint, MovingAverage
from kerasdist.checkpoints import CorruptCheckpointError, Folder, record_file, resumption, saved
from kerasdist.checkpoints.saved import RECORD, STATE, WEIGHTS
from tests import strategies

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


def make_model():
    keras.utils.set_random_seed(1)
    with strategies.get("one device").scope():
        layers = [keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1, name="dense")]
        model = keras.Sequential(layers, name="net")
        model.compile("adam", "mse", metrics=["mae"])
    return model


def train(folder, epochs=2):
    callbacks = [keras.callbacks.EarlyStopping("loss", patience=9), MovingAverage(0.9)]
    fit = {"batch_size": 4, "epochs": epochs, "shuffle": False, "verbose": 0}
    return make_model().fit(X, X[:, :1], callbacks=[Checkpoint(folder), *callbacks], **fit)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("run")
    train(folder)
    return folder


@pytest.fixture
def forged(written, tmp_path):
    """Returns a copy of that folder, of which the newest has been changed by hand."""

    def forge(change, path=tmp_path / "run"):
        shutil.copytree(written, path)
        newest = path / "step-00000008"
        change(newest)
        record = json.loads((newest / RECORD).read_text())
        record.pop("crc32")
        if "files" in record:
            record["files"] = {name: saved._sum_of(str(newest / name)) for name in (WEIGHTS, STATE)}
        record["crc32"] = record_file._sum_of(record)
        (newest / RECORD).write_text(json.dumps(record))
        return path

    return forge


def read(folder):
    found = Folder(str(folder)).read(8)
    found.check()
    resumption.data_state_of(found)
    with found.weights():
        return found


def in_record(change):
    def apply(path):
        record = json.loads((path / RECORD).read_text())
        change(record)
        (path / RECORD).write_text(json.dumps(record))

    return apply


def in_arrays(change):
    def apply(path):
        with np.load(path / STATE) as arrays:
            arrays = dict(arrays)
        change(arrays)
        np.savez(path / STATE, **arrays)

    return apply


def in_weights(change):
    def apply(path):
        with h5py.File(path / WEIGHTS, "r+") as file:
            change(file)

    return apply


ENTRIES = [*record_file._ENTRIES, "contents"]
DEEP = {
    "epoch": -1,
    "step": True,
    "num_logged": {"loss": 1},
    "history": {"epoch": [0]},
    "variables": [["weight", "a", [1]]],
    "callbacks": [{"bases": []}],
    "learning_rates": ["0.1"],
    "time": float("nan"),
}


def test_what_nobody_has_changed_is_read(forged):
    assert read(forged(lambda path: None)).step == 8


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_of_the_record_that_is_gone_or_of_another_type_is_named(name, forged, tmp_path):
    gone = forged(in_record(lambda record: record.pop(name)), tmp_path / "gone")
    other = forged(in_record(lambda record: record.update({name: [None]})), tmp_path / "other")

    for folder in (gone, other):
        with pytest.raises(CorruptCheckpointError, match=f"step-00000008: .*{name}"):
            read(folder)


@pytest.mark.parametrize("name", DEEP)
def test_an_entry_that_cannot_be_is_named(name, forged):
    folder = forged(in_record(lambda record: record.update({name: DEEP[name]})))

    with pytest.raises(CorruptCheckpointError, match=f"'{name}' in checkpoint.json cannot be"):
        read(folder)


def drop(found, name):
    del found[name]


def rename(found, name):
    found[f"{name}9"] = found[name][()]
    del found[name]


def reshape(found, name):
    shape = np.shape(found[name])
    del found[name]
    found[name] = np.zeros([*shape, 2])


def retype(found, name):
    shape = np.shape(found[name])
    del found[name]
    found[name] = np.full(shape, b"text")


CHANGES = [drop, rename, reshape, retype]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["metric/0", "seed/0", "callback/2/net/dense/kernel"])
def test_an_array_that_is_not_what_was_written_is_named(name, change, forged):
    folder = forged(in_arrays(lambda arrays: change(arrays, name)))

    with pytest.raises(CorruptCheckpointError, match=f"state.npz is not what .*'{name}' is"):
        read(folder)


SLOT, WEIGHT = "optimizer/vars/2", "layers/dense/vars/0"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [SLOT, WEIGHT])
def test_weights_and_slots_that_are_not_what_was_written_are_named(name, change, forged):
    folder = forged(in_weights(lambda file: change(file, name)))

    with pytest.raises(CorruptCheckpointError, match=f"weights.h5 is not what .*'{name}' is"):
        read(folder)


@pytest.mark.parametrize("name", [WEIGHTS, STATE])
@pytest.mark.parametrize("content", [b"", b"x" * 500, b"PK\3\4" + b"x" * 500])
def test_files_of_another_kind_are_named(name, content, forged):
    folder = forged(lambda path: (path / name).write_bytes(content))

    with pytest.raises(CorruptCheckpointError, match="step-00000008"):
        read(folder)


def test_a_training_goes_on_from_the_one_before(forged, tmp_path):
    folder = forged(in_record(lambda record: record.pop("epoch")))

    with pytest.warns(UserWarning, match=r"step 8 cannot be read: .* has no 'epoch'"):
        found = train(folder)

    assert found.history == train(tmp_path / "new").history


def test_a_training_does_not_go_on_without_a_slot_of_the_optimizer(forged):
    folder = forged(in_weights(lambda file: drop(file, SLOT)))

    with pytest.raises(CorruptCheckpointError, match=r"'optimizer/vars/2' is nothing.*Remove this"):
        train(folder, epochs=3)
