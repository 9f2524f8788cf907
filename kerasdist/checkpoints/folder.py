"""The checkpoints of a run: each is complete or absent, whenever its writer was killed.

    <directory>/step-00000120/...    the files of a checkpoint; see `saved`

A checkpoint is written under another name, forced to the disk, and renamed. Behind "://", where
folders may not be renamed, its record is written last and removed first: without it there is no
checkpoint. An old one of the same step stays under a third name until the new one is there.

A person may keep files of their own in a checkpoint, or have moved it and left a link. So what is
removed are the three files and links, never what a link points to.
"""

import contextlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from kerasdist.checkpoints import process_name, record_file, saved
from kerasdist.checkpoints.record_file import RECORD, CorruptCheckpointError
from kerasdist.checkpoints.saved import DAMAGE, FILES, NAME, Arrays, Record, Saved, SaveWeights
from kerasdist.files.whole_file import force_to_disk
from kerasdist.support.remote_path import is_remote
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn

_UNFINISHED = ".unfinished-"
# Begins the name of a checkpoint that is being replaced by one of the same step: after a kill it
# may be the only one.
_REPLACED = ".replaced-"


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
        found = (NAME.fullmatch(name) for name in names)
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

    def write(self, step: int, record: Record, arrays: Arrays, save_weights: SaveWeights) -> None:
        """Writes a checkpoint; it replaces one of the same step.

        Args:
            step: Its number.
            record: See `saved.write`.
            arrays: See `saved.write`.
            save_weights: See `saved.write`.

        Raises:
            OSError, tf.errors.OpError: It cannot be written. Nothing that was there is lost.
        """
        self._put(step, lambda local: saved.write(local, record, arrays, save_weights))

    def write_copy(self, step: int, files: Mapping[str, bytes]) -> None:
        """Writes a checkpoint that another worker has; it replaces one of the same step.

        Args:
            step: Its number.
            files: What is in each of its files.

        Raises:
            OSError, tf.errors.OpError: It cannot be written. Nothing that was there is lost.
        """
        self._put(step, lambda local: saved.write_files(local, files))

    def _put(self, step: int, fill: Callable[[str], None]):
        tf.io.gfile.makedirs(self.path)
        if is_remote(self.path):
            local = tempfile.mkdtemp(prefix="kerasdist_")
        else:
            local = os.path.join(self.path, _unfinished(_names_of(step)[0]))
        try:
            if not is_remote(self.path):
                _remove(local)  # A process of the same name may have left it.
            os.makedirs(local, exist_ok=True)
            fill(local)
            self._publish(local, step)
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def read(self, step: int) -> Saved:
        """Returns the checkpoint of a step; see `saved.read`."""
        return saved.read(self.path_of(step))

    def newest(self, check: Callable[[Saved], None] = lambda _: None) -> Saved | None:
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
                check(newest := self.read(step))
                return newest
            except CorruptCheckpointError as error:
                warn(f"The checkpoint of step {step} cannot be read: {error}")
        return None

    def newest_record(self) -> dict[str, Any]:
        """Returns what the newest checkpoint says of itself; an empty dict if nothing is read."""
        steps = self.steps()
        return self._record_of(steps[-1]) if steps else {}

    def is_finished(self, step: int) -> bool:
        """Whether a checkpoint is the last one of a `fit` that is over."""
        return bool(self._record_of(step).get("is_finished"))

    def ranked(self, monitor: str, mode: str) -> list[int]:
        """Returns the steps of the checkpoints that have a value of `monitor`, the best first.

        Args:
            monitor: The name of the value.
            mode: "min" or "max", what is best.
        """
        noted = {
            step: self._record_of(step).get("monitored", {}).get(monitor) for step in self.steps()
        }
        values = {
            step: value
            for step, value in noted.items()
            if isinstance(value, int | float) and not math.isnan(value)
        }
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
            elif NAME.fullmatch(name) and path not in kept:
                self._remove_unless_link(path)

    def clear(self) -> None:
        """Removes all checkpoints, and what killed writers have left; a link, not what it names.

        Raises:
            OSError, tf.errors.OpError: One cannot be removed.
        """
        names = tf.io.gfile.listdir(self.path) if tf.io.gfile.isdir(self.path) else []
        for name in (each.rstrip("/") for each in names):
            if name.startswith(_UNFINISHED) or NAME.fullmatch(name):
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

    def _record_of(self, step: int) -> dict[str, Any]:
        """Returns what a checkpoint says of itself; an empty dict where it cannot be read now."""
        with contextlib.suppress(*DAMAGE, OSError, tf.errors.OpError):
            return record_file.read(self.path_of(step))
        return {}

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


def _names_of(step: int) -> tuple[str, str]:
    """Returns the name of a checkpoint, and the one that it has while another replaces it."""
    name = f"step-{step:08d}"
    return name, f"{_REPLACED}{name}"


def _unfinished(name: str) -> str:
    """Returns the name of what this process writes, or removes, under a name."""
    return f"{_UNFINISHED}{name}-{process_name.own()}"


def _may_be_written(path: str) -> bool:
    """Whether an unfinished checkpoint may be one that another process writes."""
    # The name of the process follows that of a checkpoint, which ends with the digits of its step.
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
    for name in FILES:
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
    ours = [each for each in names if each in FILES or _is_link(os.path.join(path, each))]
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
