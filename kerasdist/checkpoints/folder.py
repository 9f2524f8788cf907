"""A folder of checkpoints: each is complete or absent, whenever its writer was killed.

    <directory>/step-00000120/model.weights.h5   weights and optimizer, for Keras' load_weights
                              state.npz          metrics, random seeds, what callbacks know
                              checkpoint.json    where the training is, and the sums of the others

A checkpoint is written under another name, forced to the disk, and renamed. Behind "://", where
folders may not be renamed, its record is written last and removed first: without, there is none.
Nothing in it is code.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.files.patient_file import PatientFile
from kerasdist.files.whole_file import force_to_disk

WEIGHTS, STATE, RECORD = "model.weights.h5", "state.npz", "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".unfinished-"
# What reading a checkpoint raises that is damaged, or that another process is removing.
_DAMAGE = (
    *(ValueError, KeyError, TypeError, FileNotFoundError),
    *(tf.errors.NotFoundError, tf.errors.DataLossError),
)


class CorruptCheckpointError(Exception):
    """A checkpoint is not what was written; the message names the file."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint that was read.

    Attributes:
        path: Its folder.
        step: Its number.
        record: Where the training is, and what it is; see `callbacks.Checkpoint`.
        arrays: The state but for weights and optimizer, by name.
    """

    path: str
    step: int
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @contextlib.contextmanager
    def weights(self):
        """Yields the path of a local file for Keras' `load_weights`."""
        remote = os.path.join(self.path, WEIGHTS)
        if _is_local(self.path):
            yield remote
            return
        with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
            local = os.path.join(folder, WEIGHTS)
            tf.io.gfile.copy(remote, local)
            yield local


class Folder:
    """The checkpoints of a run.

    Args:
        path: Where they are; any that `tf.io.gfile` knows.
    """

    def __init__(self, path: str):
        self.path = path

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints that are there, rising."""
        if not tf.io.gfile.isdir(self.path):
            return []
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(self.path))
        found = (_NAME.fullmatch(name) for name in names)
        steps = sorted(int(each[1]) for each in found if each)
        if _is_local(self.path):
            return steps
        records = {step: os.path.join(self.path_of(step), RECORD) for step in steps}
        return [step for step, record in records.items() if tf.io.gfile.exists(record)]

    def write(
        self, step: int, record: Mapping, arrays: Mapping, save_weights: Callable[[Any], None]
    ) -> None:
        """Writes a checkpoint, in the place of one of the same step.

        Args:
            step: Its number.
            record: What JSON can hold.
            arrays: By name.
            save_weights: Keras', called with a file.

        Raises:
            OSError, tf.errors.OpError: It cannot be written; all that was there is still there.
        """
        target = self.path_of(step)
        tf.io.gfile.makedirs(self.path)
        local = (
            os.path.join(self.path, f"{_UNFINISHED}{os.path.basename(target)}-{os.getpid()}")
            if _is_local(self.path)
            else tempfile.mkdtemp(prefix="kerasdist_")
        )
        try:
            os.makedirs(local, exist_ok=True)
            with PatientFile(os.path.join(local, WEIGHTS)) as file:
                save_weights(file)
            with open(os.path.join(local, STATE), "wb") as file:
                np.savez(file, **arrays)
            sums = {name: _sum_of(os.path.join(local, name)) for name in (WEIGHTS, STATE)}
            about = {"files": sums, "dtypes": _foreign_dtypes(arrays)}
            # As it is read: with text for the keys of all dicts.
            record = json.loads(json.dumps({**record, **about}))
            with open(os.path.join(local, RECORD), "w") as file:
                json.dump({**record, "crc32": _sum_of_record(record)}, file, indent=1)
            for name in (WEIGHTS, STATE, RECORD):
                force_to_disk(os.path.join(local, name))
            self._publish(local, target)
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def read(self, step: int) -> Saved:
        """Returns the checkpoint of a step.

        Raises:
            CorruptCheckpointError: It is not what was written, or not there any more.
            OSError: It may be whole, and cannot be read at this moment or by this user.
        """
        path = self.path_of(step)
        try:
            with tf.io.gfile.GFile(os.path.join(path, RECORD), "rb") as file:
                record = json.loads(file.read())
            if record.pop("crc32") != _sum_of_record(record):
                raise ValueError(f"{RECORD} is not what was written")
            for name, expected in record["files"].items():
                _check(os.path.join(path, name), expected)
            with (
                tf.io.gfile.GFile(os.path.join(path, STATE), "rb") as file,
                np.load(file, allow_pickle=False) as arrays,
            ):
                arrays = {**arrays, **_viewed(arrays, record.get("dtypes", {}))}
                return Saved(path=path, step=step, record=record, arrays=arrays)
        except _DAMAGE as error:
            raise CorruptCheckpointError(f"{path}: {getattr(error, 'message', error)}") from error
        except (OSError, tf.errors.OpError) as error:
            raise OSError(
                f"{path} cannot be read, and may be whole: {getattr(error, 'message', error)}. Let "
                "this process read it, name another folder, or remove this checkpoint."
            ) from error

    def newest(self) -> Saved | None:
        """Returns the newest checkpoint that is whole; None where there is none.

        Those that are damaged are warned of.

        Raises:
            OSError: One cannot be read that may be whole. To pass it over would in the end remove
                it, as the training that begins without it makes newer ones.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.read(step)
            except CorruptCheckpointError as error:
                warnings.warn(
                    f"The checkpoint of step {step} cannot be read: {error}", stacklevel=2
                )
        if steps:
            warnings.warn(
                f"No readable checkpoint in {self.path}: training begins anew.", stacklevel=2
            )
        return None

    def ranked(self, monitor: str, mode: str) -> list[int]:
        """Returns the steps of the checkpoints that are known to be good, the best first.

        Args:
            monitor: Under which name it was noted how good one is.
            mode: "min" or "max", what is best.
        """
        values = self._monitored(monitor)
        sign = -1.0 if mode == "max" else 1.0
        return sorted(values, key=lambda step: (sign * values[step], step))

    def keep(self, steps: set[int]) -> None:
        """Removes all checkpoints but those of some steps, and what killed writers have left."""
        for name in (each.rstrip("/") for each in tf.io.gfile.listdir(self.path)):
            found = _NAME.fullmatch(name)
            if name.startswith(_UNFINISHED) or (found and int(found[1]) not in steps):
                _remove(os.path.join(self.path, name))

    def path_of(self, step: int) -> str:
        """Returns the folder of the checkpoint of a step."""
        return os.path.join(self.path, f"step-{step:08d}")

    def _monitored(self, name: str) -> dict[int, float]:
        """Returns by the steps of the checkpoints what was noted under a name; not of all."""
        values = {}
        for step in self.steps():
            with contextlib.suppress(OSError, ValueError, tf.errors.OpError):
                with tf.io.gfile.GFile(os.path.join(self.path_of(step), RECORD), "rb") as file:
                    value = json.loads(file.read()).get("monitored", {}).get(name)
                if value is not None and not math.isnan(value):
                    values[step] = value
        return values

    def _publish(self, local, target):
        if tf.io.gfile.exists(target):  # After a resume from an older one, the same step again.
            _remove(target)
        if _is_local(self.path):
            os.rename(local, target)
            force_to_disk(self.path)
            return
        tf.io.gfile.makedirs(target)
        for name in (WEIGHTS, STATE, RECORD):
            tf.io.gfile.copy(os.path.join(local, name), os.path.join(target, name), True)


def saver_of_copy(save_weights: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns what saves, to a file that it is called with, the weights of this moment."""
    copy = _InMemory()
    save_weights(copy)
    return lambda file: file.write(copy.getbuffer())


class _InMemory(io.BytesIO):
    def __str__(self) -> str:
        return WEIGHTS  # Keras looks at how it ends.


def _foreign_dtypes(arrays: Mapping) -> dict[str, str]:
    """Returns by name the dtypes, as bfloat16, of which NumPy's files keep the size alone."""
    return {name: each.dtype.name for name, each in arrays.items() if each.dtype.kind == "V"}


def _viewed(arrays: Mapping, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns arrays that were read, with what `_foreign_dtypes` has returned."""
    return {
        name: arrays[name].view(tf.as_dtype(dtype).as_numpy_dtype) for name, dtype in dtypes.items()
    }


def _is_local(path: str) -> bool:
    return "://" not in path


def _remove(path: str):
    if not _is_local(path):
        record = os.path.join(path, RECORD)
        if tf.io.gfile.exists(record):
            tf.io.gfile.remove(record)
        tf.io.gfile.rmtree(path)
        return
    # Renamed first: a folder that is removed half is no checkpoint.
    hidden = os.path.join(os.path.dirname(path), f"{_UNFINISHED}removed-{os.path.basename(path)}")
    if os.path.basename(path).startswith(_UNFINISHED):
        hidden = path
    else:
        tf.io.gfile.rename(path, hidden, overwrite=True)
    if tf.io.gfile.exists(hidden):
        tf.io.gfile.rmtree(hidden)


def _sum_of(path: str) -> dict[str, int]:
    checksum, size = 0, 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 20):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"bytes": size, "crc32": checksum}


def _sum_of_record(record: Mapping) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _check(path: str, expected):
    found = _sum_of(path)
    if found != expected:
        raise ValueError(
            f"{os.path.basename(path)} is not what was written ({found['bytes']} bytes with sum "
            f"{found['crc32']}, written were {expected['bytes']} with {expected['crc32']})"
        )
