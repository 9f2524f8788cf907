"""Writes and reads the files of one checkpoint.

    model.weights.h5   weights and optimizer, for Keras' load_weights
    state.npz          metrics, random seeds, what callbacks know
    checkpoint.json    where the training is, and the sums of the others

Nothing in them is code.
"""

import contextlib
import dataclasses
import io
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import record_file
from kerasdist.checkpoints.record_file import RECORD, CorruptCheckpointError
from kerasdist.files import h5_file
from kerasdist.files.patient_file import PatientFile
from kerasdist.files.whole_file import force_to_disk
from kerasdist.support.remote_path import is_remote

WEIGHTS, STATE = "model.weights.h5", "state.npz"
FILES = (WEIGHTS, STATE, RECORD)
NAME = re.compile(r"(?:\.replaced-)?step-(\d{8,})")  # The folders of checkpoints have such names.
# Reading raises these if a checkpoint is damaged, or is being removed by another process.
DAMAGE = (
    *(ValueError, KeyError, TypeError, EOFError, FileNotFoundError),
    *(zipfile.BadZipFile, zlib.error),
    *(tf.errors.NotFoundError, tf.errors.DataLossError),
)
# A checkpoint is written from these: what JSON can hold, arrays by name, and Keras' function that
# is called with a file.
Record = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]
SaveWeights = Callable[[Any], None]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint that was read.

    Attributes:
        path: Its folder.
        record: Where the training is, and what it is; see `callbacks.Checkpoint`.
        arrays: The state by name, without weights and optimizer.
    """

    path: str
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        """Its number; of a copy with another name, how many updates its optimizer has counted."""
        found = NAME.fullmatch(os.path.basename(self.path))
        return int(found[1]) if found else self.record["updates"]

    @contextlib.contextmanager
    def weights(self) -> Generator[str]:
        """Yields the path of a local file for Keras' `load_weights`.

        Raises:
            CorruptCheckpointError: Its arrays are not those that were written.
            ValueError: It would read other files of the machine.
        """
        remote = os.path.join(self.path, WEIGHTS)
        if not is_remote(self.path):
            self._check_weights(remote)
            yield remote
            return
        with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
            local = os.path.join(folder, WEIGHTS)
            tf.io.gfile.copy(remote, local)
            self._check_weights(local)
            yield local

    def _check_weights(self, local: str):
        try:
            with h5_file.opened(local, local) as file:
                found = h5_file.contents(file)
        except OSError as error:
            raise CorruptCheckpointError(
                f"{self.path}: {WEIGHTS} cannot be read: {error}"
            ) from error
        expected = self.record.get("contents", {}).get(WEIGHTS, found)
        if reason := _difference(expected, found):
            raise CorruptCheckpointError(
                f"{self.path}: {WEIGHTS} {reason}. Remove this checkpoint: training goes on from "
                "the one before."
            )

    def check(self) -> None:
        """Checks that a training can go on from it.

        Raises:
            CorruptCheckpointError: An entry of the record is missing, or is not of its kind.
        """
        record_file.check(self.path, self.record)

    def unpacked(self, name: str) -> bytes | None:
        """Returns what `packed` has made an array of; None where there is no such array.

        Raises:
            CorruptCheckpointError: It is not what was written.
        """
        if name not in self.arrays:
            return None
        try:
            return zlib.decompress(self.arrays[name].tobytes())
        except zlib.error as error:
            raise CorruptCheckpointError(
                f"{self.path}: {name!r} in {STATE} is not what was written: {error}"
            ) from error


def read(path: str) -> Saved:
    """Returns the checkpoint in a folder of any name.

    Raises:
        CorruptCheckpointError: It is not what was written, or no longer there.
        OSError: It may be whole, but cannot be read at this moment or by this user.
    """
    try:
        record = record_file.read(path)
        for name, expected in _listed(record, "files").items():
            _check(os.path.join(path, name), expected)
        with (
            tf.io.gfile.GFile(os.path.join(path, STATE), "rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            contents = _listed(record, "contents")[STATE]
            arrays = _viewed(arrays, contents)
        if reason := _difference(contents, _shapes(arrays)):
            raise ValueError(f"{STATE} {reason}")
        return Saved(path=path, record=record, arrays=arrays)
    except DAMAGE as error:
        raise CorruptCheckpointError(f"{path}: {getattr(error, 'message', error)}") from error
    except (OSError, tf.errors.OpError) as error:
        if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
            raise CorruptCheckpointError(f"{path} is a file, and no checkpoint") from error
        raise OSError(
            f"{path} cannot be read, but may be whole: {getattr(error, 'message', error)}. Let "
            "this process read it, use another folder, or remove this checkpoint."
        ) from error


def write(folder: str, record: Record, arrays: Arrays, save_weights: SaveWeights) -> None:
    """Writes the files of a checkpoint, and forces them to the disk.

    Args:
        folder: Where they go, on a disk of this machine.
        record: What JSON can hold.
        arrays: By name.
        save_weights: Keras' function, called with a file.

    Raises:
        OSError: They cannot be written.
    """
    with PatientFile(os.path.join(folder, WEIGHTS)) as file:
        save_weights(file)
    with open(os.path.join(folder, STATE), "wb") as file:
        np.savez(file, **dict[str, Any](arrays))
    sums = {name: _sum_of(os.path.join(folder, name)) for name in (WEIGHTS, STATE)}
    contents = {WEIGHTS: _contents_of(folder), STATE: _shapes(arrays)}
    record_file.write(folder, {**record, "files": sums, "contents": contents})
    for name in FILES:
        force_to_disk(os.path.join(folder, name))


def files_of(checkpoint: Saved) -> dict[str, bytes]:
    """Returns what is in each file of a checkpoint."""
    return {name: _content(os.path.join(checkpoint.path, name)) for name in FILES}


def write_files(folder: str, files: Mapping[str, bytes]) -> None:
    """Writes the files of a checkpoint as they are, and forces them to the disk.

    Raises:
        OSError: They cannot be written.
    """
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
        force_to_disk(os.path.join(folder, name))


def _content(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def _listed(record: Mapping, entry: str) -> dict[str, Any]:
    """Returns what a record says of each file of a checkpoint."""
    found = record.get(entry)
    is_whole = isinstance(found, Mapping) and found.keys() == {WEIGHTS, STATE}
    if not is_whole or not all(isinstance(each, Mapping) for each in found.values()):
        raise ValueError(f"{entry!r} in {RECORD} cannot be {str(found)[:50]!r}")
    return dict(found)


def saver_of_copy(save_weights: SaveWeights) -> SaveWeights:
    """Returns a function that writes the weights of this moment to a file."""
    copy = _InMemory()
    save_weights(copy)
    return lambda file: file.write(copy.getbuffer())


def packed(content: bytes) -> np.ndarray:
    """Returns an array to save that holds some bytes, compressed."""
    return np.frombuffer(zlib.compress(content, level=1), np.uint8)


class _InMemory(io.BytesIO):
    def __str__(self) -> str:
        return WEIGHTS  # Keras looks at the suffix.


def _contents_of(local: str) -> dict[str, list]:
    path = os.path.join(local, WEIGHTS)
    if not h5py.is_hdf5(path):
        return {}
    with h5py.File(path, "r") as file:
        return h5_file.contents(file)


def _shapes(arrays: Mapping) -> dict[str, list]:
    """Returns [dtype, shape] of arrays by name."""
    return {name: [each.dtype.name, list(each.shape)] for name, each in arrays.items()}


def _viewed(arrays: Mapping, contents: Mapping[str, list]) -> dict[str, np.ndarray]:
    """Returns arrays that were read, with dtypes such as bfloat16, of which NumPy keeps the size.

    Args:
        arrays: As NumPy reads them.
        contents: `_shapes` of those that were written.
    """
    found = {}
    for name, array in arrays.items():
        is_foreign = array.dtype.kind == "V" and name in contents
        found[name] = array.view(_dtype(contents[name][0])) if is_foreign else array
    return found


def _dtype(name: str) -> np.dtype:
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def _difference(expected: Mapping[str, list], found: Mapping[str, list]) -> str:
    """Returns in words how the contents of a file are not those that were written; "" if not."""
    for name in dict.fromkeys([*expected, *found]):
        if expected.get(name) != found.get(name):
            was, now = (each.get(name, "nothing") for each in (expected, found))
            return f"is not what was written: {name!r} is {now} instead of {was}"
    return ""


def _sum_of(path: str) -> dict[str, int]:
    checksum, size = 0, 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"bytes": size, "crc32": checksum}


def _check(path: str, expected: Mapping[str, int]):
    found = _sum_of(path)
    if found != expected:
        raise ValueError(
            f"{os.path.basename(path)} is not what was written: {found['bytes']} bytes with sum "
            f"{found['crc32']} instead of {expected['bytes']} bytes with sum {expected['crc32']}"
        )
