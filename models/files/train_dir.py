"""The directory of a training run: its files, each of which is written in one piece."""

import contextlib
import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

import kerasdist

from ..usage_error import UsageError
from . import labels
from .whole_file import whole_file

# As `callbacks.Checkpoint` names them. One that a newer one of the same step was replacing when the
# run was killed has another name, and may be the only one.
_CHECKPOINT = re.compile(r"(?:\.replaced-)?step-(\d+)")


@dataclass(frozen=True, slots=True)
class TrainDir:
    """Where a run writes.

    Args:
        path: The directory; made by `taken`.
    """

    path: Path

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model.keras"

    @property
    def learning_curve(self) -> Path:
        """The picture of loss and accuracy."""
        return self.path / "learning_curve.png"

    @property
    def samples(self) -> Path:
        """The picture of examples, as stored and as the net sees them."""
        return self.path / "samples.png"

    @property
    def checkpoints(self) -> Path:
        """What an interrupted run resumes from."""
        return self.path / "checkpoints"

    @property
    def labels(self) -> Path:
        """The names of the classes."""
        return self.path / labels.FILE

    @property
    def events(self) -> Path:
        """The event files of the training, where those of its callbacks are."""
        return self.path / "train"

    @property
    def is_begun(self) -> bool:
        """Whether there are checkpoints to resume from."""
        return self.newest_step is not None

    @property
    def newest_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        found = (_CHECKPOINT.fullmatch(path.name) for path in self.checkpoints.glob("*step-*"))
        return max((int(each[1]) for each in found if each), default=None)

    @staticmethod
    def weights_at(path: str) -> str:
        """Returns what to read weights from: the model of a run, its checkpoints, or the path.

        Raises:
            UsageError: It is a pipe or a device, and would be waited for.
        """
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise UsageError(f"--checkpoint_path {path!r} is neither a file nor a folder.")
        run = TrainDir(Path(path))
        if run.model.exists():
            return str(run.model)
        return str(run.checkpoints) if run.is_begun else path

    def files(self) -> dict[str, str]:
        """Returns what the run writes, for the person: name to path."""
        return {
            "model": str(self.model),
            "labels": str(self.labels),
            "samples": str(self.samples),
            "learning curve": str(self.learning_curve),
            "event files": f"{self.events}, {self.path}/validation",
            "checkpoints": str(self.checkpoints),
        }

    def check(self, *, overwrite: bool) -> None:
        """Raises UsageError unless a new run can write here; writes nothing.

        Args:
            overwrite: Whether the results of an earlier run may be replaced.

        Raises:
            UsageError: Not a directory, not writable, or in use.
        """
        for path in (self.path, self.checkpoints):
            _check_writable(path)
        if self.model.exists() and not self.is_begun and not overwrite:
            raise UsageError(
                f"--train_dir {str(self.path)!r} holds the model of an earlier run, but no "
                "checkpoint to resume from. Choose another one, or add --overwrite to replace it."
            )

    @contextlib.contextmanager
    def taken(self) -> Generator[None]:
        """Makes the directory and keeps other runs out of it, until the end of the `with`.

        Raises:
            UsageError: It cannot be made, or another run uses it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            directory = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UsageError(
                f"--train_dir {str(self.path)!r} cannot be created: {error}. Choose another one."
            ) from error
        try:
            self._lock(directory)
            yield
        finally:
            os.close(directory)

    def _lock(self, directory: int) -> None:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"--train_dir {str(self.path)!r} is in use by another run. Choose another one, or "
                "end that run."
            ) from error
        except OSError:  # A file system without locks.
            pass

    def clear(self, *, overwrite: bool = False) -> None:
        """Deletes the event files of a run that is not resumed; its checkpoints, if asked.

        Its model and pictures stay until the new ones replace them.

        Args:
            overwrite: Whether a run that could be resumed is replaced, too.

        Raises:
            UsageError: A checkpoint cannot be deleted, and would be resumed.
        """
        if overwrite:
            self._remove_checkpoints()
        elif self.is_begun:
            return
        event_files = [
            file
            for part in ("train", "validation")  # As keras.callbacks.TensorBoard names them.
            for file in (self.path / part).glob("events.out.tfevents.*")
        ]
        if event_files or self.model.exists():
            print(f"Starting over: the results of an earlier run in {self.path} are replaced.")
        for file in event_files:
            file.unlink()

    def _remove_checkpoints(self) -> None:
        try:
            kerasdist.callbacks.Checkpoint(self.checkpoints).clear()
        except (OSError, tf.errors.OpError) as error:
            raise UsageError(
                f"--overwrite cannot delete the checkpoints in {self.checkpoints}: {error}. "
                "Delete them, or choose another --train_dir."
            ) from error

    def save(self, model: keras.Model) -> Path:
        """Saves `model`; whatever happens, the file is the old one or the new one, complete.

        Returns:
            Its path, which is in the folder for temporary files if this directory is full.

        Raises:
            UsageError: It cannot be written to either of them.
        """
        try:
            with whole_file(self.model) as incomplete:
                model.save(incomplete)
            return self.model
        except OSError as error:
            told = f"The model cannot be written to {self.model}: {error}."
        other = Path(tempfile.mkdtemp(prefix="kerasdist_model_")) / self.model.name
        try:
            with whole_file(other) as incomplete:
                model.save(incomplete)
        except OSError as error:
            other.parent.rmdir()
            raise UsageError(
                f"{told} It cannot be written to {tempfile.gettempdir()}, either: {error}. Free "
                "some space and run the same command again: it resumes from the newest checkpoint "
                f"in {self.checkpoints}, if there is one."
            ) from error
        print(f"\n{told}", file=sys.stderr)
        return other


def _check_writable(path: Path) -> None:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError(
            f"--train_dir {str(path)!r} cannot be created: {existing} is not a directory. Choose "
            "another one."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"--train_dir {str(path)!r} cannot be written: no permission for {existing}. Choose "
            "another one."
        )
