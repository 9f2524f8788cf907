"""Where a run writes, and what is left when it fails."""

import errno
import fcntl
import os
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasdist.checkpoints import Folder
from models.files.train_dir import TrainDir
from models.usage_error import UsageError
from tests import permissions


class Model(keras.Model):
    """Writes a text for a model, or fails half-way as Keras does on a full disk."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.fails = fails

    def save(self, filepath, overwrite=True, **kwargs):
        filepath.write_text("half")
        if self.fails:
            raise OSError("No space left on device")
        filepath.write_text("new")


def write_checkpoint(train_dir):
    folder = Folder(str(train_dir.checkpoints))
    folder.write(10, {}, {"seed": np.ones(1)}, lambda file: file.write(b"weights"))
    return folder


def test_checking_writes_nothing(tmp_path):
    TrainDir(tmp_path / "a/b").check(overwrite=False)

    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match=r"cannot be created: .*file is not a directory"):
        TrainDir(tmp_path / "file/run").check(overwrite=False)


def test_checkpoints_that_cannot_be_written_are_refused(monkeypatch, tmp_path):
    train_dir = TrainDir(tmp_path)
    train_dir.checkpoints.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"checkpoints' cannot be created: .*not a directory"):
        train_dir.check(overwrite=True)

    train_dir.checkpoints.unlink()
    train_dir.checkpoints.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != train_dir.checkpoints)
    with pytest.raises(UsageError, match=r"checkpoints' cannot be written: no permission"):
        train_dir.check(overwrite=True)


def test_a_file_system_that_refuses_is_a_message():
    with (
        pytest.raises(UsageError, match=r"'/proc/run' cannot be created: .*Choose another"),
        TrainDir(Path("/proc/run")).taken(),
    ):
        pass


def test_a_directory_that_is_taken_is_refused_and_free_afterwards(tmp_path):
    train_dir = TrainDir(tmp_path / "run")

    with (
        train_dir.taken(),
        pytest.raises(UsageError, match=r"is in use by another run\. Choose another"),
        train_dir.taken(),
    ):
        pass
    with train_dir.taken():
        pass

    assert list(train_dir.path.iterdir()) == []


def test_a_file_system_without_locks_is_used_as_it_is(tmp_path, monkeypatch):
    def refuse(directory, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with TrainDir(tmp_path).taken():
        pass


def test_an_earlier_model_is_replaced_only_when_asked(tmp_path):
    train_dir = TrainDir(tmp_path)
    train_dir.model.write_text("old")

    train_dir.check(overwrite=True)
    with pytest.raises(UsageError, match=r"holds the model of an earlier run.*add --overwrite"):
        train_dir.check(overwrite=False)


def test_clearing_takes_away_old_event_files_alone(tmp_path, capsys):
    train_dir = TrainDir(tmp_path)
    events = tmp_path / "train/events.out.tfevents.1"
    events.parent.mkdir()
    events.write_text("")
    other_run = tmp_path / "other/events.out.tfevents.1"
    other_run.parent.mkdir()
    other_run.write_text("")
    train_dir.model.write_text("old")

    train_dir.clear()

    assert not events.exists()
    assert other_run.exists()
    assert train_dir.model.read_text() == "old"
    assert "Starting over" in capsys.readouterr().out


def test_a_checkpoint_that_was_being_replaced_is_resumed_and_kept(tmp_path):
    train_dir = TrainDir(tmp_path)
    folder = write_checkpoint(train_dir)
    path = train_dir.checkpoints / "step-00000010"
    path.rename(path.with_name(f".replaced-{path.name}"))  # As a kill may leave it.

    train_dir.clear()

    assert folder.steps() == [10]
    assert (train_dir.is_begun, train_dir.newest_step) == (True, 10)
    assert TrainDir.weights_at(str(tmp_path)) == str(train_dir.checkpoints)


@pytest.mark.parametrize("is_link", [False, True])
def test_checkpoints_are_deleted_only_when_asked(is_link, tmp_path):
    scratch = tmp_path / ("scratch" if is_link else "checkpoints")
    scratch.mkdir()
    train_dir = TrainDir(tmp_path)
    if is_link:
        train_dir.checkpoints.symlink_to(scratch)
    write_checkpoint(train_dir)
    copy = scratch / "step-00000010-copy"  # No checkpoint that a run resumes from.
    copy.mkdir()

    train_dir.clear()
    assert train_dir.is_begun
    train_dir.clear(overwrite=True)
    assert not train_dir.is_begun
    assert list(train_dir.checkpoints.iterdir()) == [train_dir.checkpoints / copy.name]


def test_checkpoints_that_cannot_be_deleted_are_not_resumed(tmp_path):
    train_dir = TrainDir(tmp_path)
    write_checkpoint(train_dir)
    train_dir.checkpoints.chmod(0o500)

    with (
        permissions.respected(),
        pytest.raises(UsageError, match=r"--overwrite cannot delete .*checkpoints.*Delete them"),
    ):
        train_dir.clear(overwrite=True)


def test_a_save_that_fails_leaves_the_old_model_whole(tmp_path):
    train_dir = TrainDir(tmp_path)
    train_dir.save(Model())

    # It fails everywhere: there is no second place, either.
    with pytest.raises(
        UsageError, match=r"No space left.* to .*, either: No space left.*Free some space"
    ):
        train_dir.save(Model(fails=True))

    assert train_dir.model.read_text() == "new"
    assert list(tmp_path.iterdir()) == [train_dir.model]
