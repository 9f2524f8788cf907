"""A folder of checkpoints: each is complete or absent, whenever its writer was killed.

    <directory>/step-00000120/model.weights.h5   weights and optimizer, for Keras' load_weights
                              state.npz          metrics, random seeds, what callbacks know
                              checkpoint.json    where the training is, and the sums of the others

A checkpoint is written under another name, forced to the disk, and renamed. Behind "://", where
folders may not be renamed, its record is written last and removed first: without it there is no
checkpoint. An old one of the same step stays under a third name until the new one is there. Nothing
in a checkpoint is code.

A person may keep files of their own in a checkpoint, or have moved it and left a link. So what is
removed are the three files and links, never what a link points to.
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
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from kerasdist.checkpoints import process_name
from kerasdist.files import h5_file
from kerasdist.files.patient_file import PatientFile
from kerasdist.files.whole_file import force_to_disk
from kerasdist.support.remote_path import is_remote
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn

WEIGHTS, STATE, RECORD = "model.weights.h5", "state.npz", "checkpoint.json"
_FILES = (WEIGHTS, STATE, RECORD)
_NAME = re.compile(r"(?:\.replaced-)?step-(\d{8,})")
_UNFINISHED = ".unfinished-"
# Before the name of a checkpoint that one of the same step replaces: after a kill it may be alone.
_REPLACED = ".replaced-"
# What reading raises if a checkpoint is damaged, or is being removed by another process.
_DAMAGE = (
    *(ValueError, KeyError, TypeError, EOFError, FileNotFoundError),
    *(zipfile.BadZipFile, zlib.error),
    *(tf.errors.NotFoundError, tf.errors.DataLossError),
)


class CorruptCheckpointError(Exception):
    """A checkpoint is not what was written; the message names the file."""


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
        found = _NAME.fullmatch(os.path.basename(self.path))
        return int(found[1]) if found else self.record["updates"]

    @contextlib.contextmanager
    def weights(self):
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
            raise self._corrupt(reason)

    def _corrupt(self, reason: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.path}: {WEIGHTS} {reason}. Remove this checkpoint: training goes "
            "on from the one before."
        )


class Folder:
    """The checkpoints of a run.

    Args:
        path: Where they are; any path that `tf.io.gfile` supports.
    """

    def __init__(self, path: str):
        self.path = path
        self._left_alone: set[str] = set()  # Links of which it has warned.

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints in the folder, in ascending order."""
        if not tf.io.gfile.isdir(self.path):
            return []
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(self.path))
        found = (_NAME.fullmatch(name) for name in names)
        steps = sorted({int(each[1]) for each in found if each})
        if not is_remote(self.path):
            return steps
        records = {step: os.path.join(self.path_of(step), RECORD) for step in steps}
        return [step for step, record in records.items() if tf.io.gfile.exists(record)]

    def try_out(self) -> None:
        """Makes the folder if it is not there, and an empty file in it for a moment.

        Raises:
            OSError, tf.errors.OpError: This process may not.
        """
        tf.io.gfile.makedirs(self.path)
        path = os.path.join(self.path, _unfinished("trial"))
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("")  # Makes it.
        tf.io.gfile.remove(path)

    def write(
        self, step: int, record: Mapping, arrays: Mapping, save_weights: Callable[[Any], None]
    ) -> None:
        """Writes a checkpoint; it replaces one of the same step.

        Args:
            step: Its number.
            record: What JSON can hold.
            arrays: By name.
            save_weights: Keras' function, called with a file.

        Raises:
            OSError, tf.errors.OpError: It cannot be written. Nothing that was there is lost.
        """
        tf.io.gfile.makedirs(self.path)
        local = (
            os.path.join(self.path, _unfinished(_names_of(step)[0]))
            if not is_remote(self.path)
            else tempfile.mkdtemp(prefix="kerasdist_")
        )
        try:
            if not is_remote(self.path):
                _remove(local)  # What a process of the same name has left.
            os.makedirs(local, exist_ok=True)
            with PatientFile(os.path.join(local, WEIGHTS)) as file:
                save_weights(file)
            with open(os.path.join(local, STATE), "wb") as file:
                np.savez(file, **arrays)
            sums = {name: _sum_of(os.path.join(local, name)) for name in (WEIGHTS, STATE)}
            contents = {WEIGHTS: _contents_of(local), STATE: _shapes(arrays)}
            about = {"files": sums, "contents": contents}
            # As it is read: with text for the keys of all dicts.
            record = json.loads(json.dumps({**record, **about}))
            with open(os.path.join(local, RECORD), "w") as file:
                json.dump({**record, "crc32": _sum_of_record(record)}, file, indent=1)
            for name in _FILES:
                force_to_disk(os.path.join(local, name))
            self._publish(local, step)
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def read(self, step: int) -> Saved:
        """Returns the checkpoint of a step; see `read`."""
        return read(self.path_of(step))

    def newest(self, check: Callable[[Saved], None] = lambda saved: None) -> Saved | None:
        """Returns the newest checkpoint that is whole; None if there is none.

        It warns of each one that is damaged.

        Args:
            check: Called with each that is; it may raise CorruptCheckpointError.

        Raises:
            OSError: One that may be whole cannot be read. If it were skipped, the training would
                begin without it, make newer ones, and in the end remove it.
        """
        for step in reversed(self.steps()):
            try:
                check(saved := self.read(step))
                return saved
            except CorruptCheckpointError as error:
                warn(f"The checkpoint of step {step} cannot be read: {error}")
        return None

    def newest_record(self) -> dict[str, Any]:
        """Returns what the newest checkpoint says of itself; an empty dict if nothing is read."""
        for step in self.steps()[-1:]:
            with contextlib.suppress(*_DAMAGE, OSError, tf.errors.OpError):
                return _record_at(self.path_of(step))
        return {}

    def is_finished(self, step: int) -> bool:
        """Whether a checkpoint is the last one of a `fit` that is over."""
        try:
            return bool(_record_at(self.path_of(step)).get("is_finished"))
        except (*_DAMAGE, OSError, tf.errors.OpError):  # It is being replaced, for example.
            return False

    def ranked(self, monitor: str, mode: str) -> list[int]:
        """Returns the steps of the checkpoints that have a value of `monitor`, the best first.

        Args:
            monitor: The name of the value.
            mode: "min" or "max", what is best.
        """
        values = self._monitored(monitor)
        sign = -1.0 if mode == "max" else 1.0
        return sorted(values, key=lambda step: (sign * values[step], step))

    def keep(self, steps: set[int]) -> None:
        """Removes all checkpoints except those of `steps`, and what killed writers have left.

        What another process may be writing stays, and so does what it has left where this one may
        not remove it. A checkpoint that is a link stays with a warning: the person who has moved it
        keeps it elsewhere.
        """
        kept = {self.path_of(step) for step in steps}
        for name in (each.rstrip("/") for each in tf.io.gfile.listdir(self.path)):
            path = os.path.join(self.path, name)
            if name.startswith(_UNFINISHED) and not _may_be_written(path):
                with contextlib.suppress(OSError, tf.errors.OpError):
                    _remove(path)
            elif _NAME.fullmatch(name) and path not in kept:
                self._remove_unless_link(path)

    def clear(self) -> None:
        """Removes all checkpoints, and what killed writers have left; a link, not what it names.

        Raises:
            OSError, tf.errors.OpError: One cannot be removed.
        """
        names = tf.io.gfile.listdir(self.path) if tf.io.gfile.isdir(self.path) else []
        for name in (each.rstrip("/") for each in names):
            if name.startswith(_UNFINISHED) or _NAME.fullmatch(name):
                _remove(os.path.join(self.path, name))

    def path_of(self, step: int) -> str:
        """Returns the folder of the checkpoint of a step."""
        path, replaced = (os.path.join(self.path, each) for each in _names_of(step))
        return replaced if not _is_there(path) and _is_there(replaced) else path

    def _remove_unless_link(self, path: str):
        if not _is_link(path):
            _remove(path)
        elif path not in self._left_alone:
            self._left_alone.add(path)
            warn(
                f"{path} is a link to a checkpoint that is kept elsewhere, and is not removed. "
                "Remove the link if nothing needs it."
            )

    def _monitored(self, name: str) -> dict[int, float]:
        """Returns by the steps of the checkpoints what was noted under a name; not of all."""
        values = {}
        for step in self.steps():
            with contextlib.suppress(*_DAMAGE, OSError, tf.errors.OpError):
                value = _record_at(self.path_of(step)).get("monitored", {}).get(name)
                if value is not None and not math.isnan(value):
                    values[step] = value
        return values

    def _publish(self, local: str, step: int):
        path, replaced = (os.path.join(self.path, each) for each in _names_of(step))
        if _is_there(path):  # The same step again, as after a resume from an older one.
            _remove(replaced)
            _put(path, replaced)
        _remove(path)
        _put(local, path)
        _remove(replaced)
        if not is_remote(self.path):
            force_to_disk(self.path)


def read(path: str) -> Saved:
    """Returns the checkpoint in a folder of any name.

    Raises:
        CorruptCheckpointError: It is not what was written, or no longer there.
        OSError: It may be whole, but cannot be read at this moment or by this user.
    """
    try:
        record = _record_at(path)
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
    except _DAMAGE as error:
        raise CorruptCheckpointError(f"{path}: {getattr(error, 'message', error)}") from error
    except (OSError, tf.errors.OpError) as error:
        if tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path):
            raise CorruptCheckpointError(f"{path} is a file, and no checkpoint") from error
        raise OSError(
            f"{path} cannot be read, but may be whole: {getattr(error, 'message', error)}. Let "
            "this process read it, use another folder, or remove this checkpoint."
        ) from error


def _listed(record: Mapping, entry: str) -> dict[str, Any]:
    """Returns what a record says of each file of a checkpoint."""
    found = record.get(entry)
    is_whole = isinstance(found, Mapping) and found.keys() == {WEIGHTS, STATE}
    if not is_whole or not all(isinstance(each, Mapping) for each in found.values()):
        raise ValueError(f"{entry!r} in {RECORD} cannot be {str(found)[:50]!r}")
    return dict(found)


def _record_at(path: str) -> dict[str, Any]:
    with tf.io.gfile.GFile(os.path.join(path, RECORD), "rb") as file:
        content = file.read()
    try:
        record = json.loads(content)
        is_whole = record.pop("crc32") == _sum_of_record(record)
    except (ValueError, KeyError, AttributeError, TypeError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{RECORD} is not what was written")
    return record


def saver_of_copy(save_weights: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a function that writes the weights of this moment to a file."""
    copy = _InMemory()
    save_weights(copy)
    return lambda file: file.write(copy.getbuffer())


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


def _names_of(step: int) -> tuple[str, str]:
    """Returns the name of a checkpoint, and the one that it has while another replaces it."""
    name = f"step-{step:08d}"
    return name, f"{_REPLACED}{name}"


def _unfinished(name: str) -> str:
    """Returns the name of what this process writes, or removes, under a name."""
    return f"{_UNFINISHED}{name}-{process_name.own()}"


def _may_be_written(path: str) -> bool:
    """Whether an unfinished checkpoint may be one that another process writes."""
    # Behind the name of a checkpoint, which ends with the digits of its step.
    writer = re.sub(r".*?step-\d+-", "", os.path.basename(path))
    return not is_remote(path) and process_name.may_write(writer, path)


def _is_there(path: str) -> bool:
    return tf.io.gfile.exists(os.path.join(path, RECORD) if is_remote(path) else path)


def _put(path: str, target: str):
    """Gives a checkpoint another path; if that takes a copy, the old one stays."""
    if not is_remote(target):
        os.rename(path, target)
        return
    tf.io.gfile.makedirs(target)
    for name in _FILES:
        source = os.path.join(path, name)
        if tf.io.gfile.exists(source):  # A damaged one may lack it.
            tf.io.gfile.copy(source, os.path.join(target, name), overwrite=True)


def _is_link(path: str) -> bool:
    return os.path.islink(path.removeprefix("file://"))


def _remove(path: str):
    """Removes a checkpoint, or what is left of one, if it is there; of a link, the link alone."""
    if _is_link(path):
        tf.io.gfile.remove(path)
        return
    if not tf.io.gfile.exists(path):
        return
    folder, name = os.path.split(path)
    if not is_remote(path) and not name.startswith(_UNFINISHED):
        # Renamed first: a folder that is half removed is no checkpoint.
        path = os.path.join(folder, _unfinished(f"removed-{name}"))
        _remove(path)
        try:
            os.rename(os.path.join(folder, name), path)
        except FileNotFoundError:  # Another process has removed it.
            return
    _remove_files(path)


def _remove_files(path: str):
    names = tf.io.gfile.listdir(path)
    ours = [each for each in names if each in _FILES or _is_link(os.path.join(path, each))]
    for name in sorted(ours, key=lambda each: each != RECORD):
        tf.io.gfile.remove(os.path.join(path, name))
    others = [each.rstrip("/") for each in names if each not in ours]
    if not others:
        tf.io.gfile.rmtree(path)
    elif ours or not is_remote(path):
        warn(
            f"The checkpoint is removed, but not what others have put into it: "
            f"{short_list(others, 5)} in {_shown(path)}."
        )


def _shown(path: str) -> str:
    """Gives what is left of a checkpoint a name under which it is seen, and returns its path."""
    folder, name = os.path.split(path)
    step = re.search(r"step-\d+", name)
    shown = os.path.join(folder, f"other-files-of-{step[0] if step else name}")
    if is_remote(path) or os.path.lexists(shown):
        return path
    os.rename(path, shown)
    return shown


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
            f"{os.path.basename(path)} is not what was written: {found['bytes']} bytes with sum "
            f"{found['crc32']} instead of {expected['bytes']} bytes with sum {expected['crc32']}"
        )
