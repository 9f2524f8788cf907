"""No HDF5 file brings along what is in another one."""

import zipfile

import h5py
import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.checkpoints import model_state
from kerasdist.checkpoints.saved import Saved
from kerasdist.files import h5_file

WEIGHT = "layers/dense/vars/0"


def external_storage(file, place, secret):
    file.create_dataset(place, (2, 4), "float32", external=[(secret, 0, 32)])


def external_link(file, place, secret):
    file[place] = h5py.ExternalLink(secret, "/secret")


def soft_link(file, place, secret):
    file["other"] = h5py.ExternalLink(secret, "/")
    file[place] = h5py.SoftLink("/other/secret")


def virtual_dataset(file, place, secret):
    layout = h5py.VirtualLayout((2, 4), "float32")
    layout[:] = h5py.VirtualSource(secret, "secret", shape=(2, 4))
    file.create_virtual_dataset(place, layout)


def write(kind, path, secret):
    """Writes a file that has the place of a weight, and the name of one in the older layout."""
    with h5py.File(path, "w") as file:
        kind(file, WEIGHT, secret)
        file.attrs["layer_names"] = ["layers"] if path.name == "older.h5" else []
        file["layers"].attrs["weight_names"] = ["dense/vars/0"]
        if path.name != "older.h5":
            del file.attrs["layer_names"]
    return path


def write_secret(tmp_path) -> str:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.ones((2, 4), "float32")
    return str(tmp_path / "secret.h5")


def make_model():
    dense = keras.layers.Dense(4, use_bias=False, name="dense")
    return keras.Sequential([keras.Input((2,)), dense])


@pytest.mark.parametrize("name", ["new.weights.h5", "older.h5", "zipped.keras"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (external_storage, r"'/layers/dense/vars/0' is stored in .*secret\.h5' \(external storage"),
        (external_link, r"'0' in '/layers/dense/vars' is a link \(ExternalLink\)"),
        (soft_link, r"is a link \((Soft|External)Link\)"),
        (virtual_dataset, "'/layers/dense/vars/0' is a virtual dataset"),
    ],
)
def test_weights_in_another_file_are_refused(kind, reason, name, tmp_path):
    path = write(kind, tmp_path / name.replace("zipped.keras", "w"), write_secret(tmp_path))
    if name == "zipped.keras":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.write(path, "model.weights.h5")
    model = make_model()
    before = model.get_weights()[0]

    with pytest.raises(ValueError, match=f"{name}' may read other files.*{reason}"):
        kerasdist.warm_start(model, tmp_path / name)

    np.testing.assert_array_equal(model.get_weights()[0], before)


@pytest.mark.parametrize("kind", [external_storage, external_link, soft_link, virtual_dataset])
def test_a_checkpoint_with_weights_in_another_file_is_not_restored(kind, tmp_path):
    write(kind, tmp_path / "model.weights.h5", write_secret(tmp_path))

    with pytest.raises(ValueError, match=r"model\.weights\.h5' may read other files"):
        model_state.restore(make_model(), Saved(path=str(tmp_path), record={}, arrays={}))


def test_a_group_that_is_in_itself_is_read(tmp_path):
    with h5py.File(tmp_path / "round.h5", "w") as file:
        file["group/inner"] = np.ones(2)
        file["group/again"] = file["group"]

    with h5_file.opened(tmp_path / "round.h5", "round.h5") as found:
        assert list(found["group/inner"]) == [1.0, 1.0]
