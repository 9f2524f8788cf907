"""A file for HDF5 that a full disk does not break."""

import h5py
import numpy as np
import pytest

from kerasdist.files.patient_file import PatientFile
from tests.full_disk import files_of_at_most


def write(file, size=20_000):
    with h5py.File(file, "w") as content:
        for name in "abc":
            content[name] = np.arange(size, dtype="float32")
        del content["b"]
        content["b"] = np.ones(3)


def test_what_is_written_is_what_hdf5_writes_itself(tmp_path):
    with PatientFile(str(tmp_path / "ours.h5")) as file:
        write(file)
    write(tmp_path / "theirs.h5")

    with h5py.File(tmp_path / "ours.h5") as ours, h5py.File(tmp_path / "theirs.h5") as theirs:
        for name in "abc":
            np.testing.assert_array_equal(ours[name][:], theirs[name][:])
    assert str(file).endswith("ours.h5")


@pytest.mark.parametrize("limit", [0, 1000, 79_000, 200_000])
def test_a_disk_that_takes_no_more_is_told_at_the_end(limit, tmp_path):
    with (
        files_of_at_most(limit),
        pytest.raises(OSError, match="File too large"),
        PatientFile(str(tmp_path / "file.h5")) as file,
    ):
        write(file)
        with h5py.File(file, "r") as content:  # Still whole, in memory.
            np.testing.assert_array_equal(content["c"][:], np.arange(20_000))

    assert (tmp_path / "file.h5").stat().st_size <= limit


def test_after_an_error_hdf5_can_still_end_what_it_has_begun(tmp_path):
    path = tmp_path / "file.h5"

    with pytest.raises(RuntimeError, match="in the middle"), PatientFile(str(path)) as file:
        content = h5py.File(file, "w")
        content["a"] = np.arange(20_000)
        raise RuntimeError("in the middle")

    content["b"] = np.ones(20_000)
    content.close()


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        PatientFile(str(tmp_path / "none/file.h5"))
