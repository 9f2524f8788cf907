"""A folder of checkpoints holds one of each step, whenever its writer is killed."""

import itertools
import os
import shutil
import socket
import subprocess
import uuid

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.checkpoints import CorruptCheckpointError, Folder
from kerasdist.checkpoints.saved import read
from tests import permissions


class Killed(BaseException):
    """The writer is killed."""


def write(folder, step, number):
    """Writes a checkpoint with a number, by which it is known again."""
    folder.write(step, {}, {"number": np.array(number)}, lambda file: file.write(b"weights"))


def number_in(folder):
    return folder.newest().arrays["number"]


def killed_after(monkeypatch, num_operations):
    """Lets a writer change names and copy files so many times."""
    left = itertools.count(num_operations, -1)

    def limited(operation):
        def run(*arguments, **options):
            if next(left) <= 0:
                raise Killed
            return operation(*arguments, **options)

        return run

    for module, names in (
        (os, ("rename",)),
        (tf.io.gfile, ("rename", "rmtree", "copy", "remove", "makedirs")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, limited(getattr(module, name)))


@pytest.mark.parametrize("place", ["disk", "elsewhere"])
def test_one_that_is_replaced_is_there_whenever_the_writer_is_killed(place, monkeypatch, tmp_path):
    for num_operations in itertools.count(1):
        root = tmp_path if place == "disk" else f"ram://{uuid.uuid4().hex}"
        folder = Folder(f"{root}/{num_operations}")
        write(folder, 3, 1)
        with monkeypatch.context() as patched:
            killed_after(patched, num_operations)
            try:
                write(folder, 3, 2)
                break
            except Killed:
                pass

        assert folder.steps() == [3]
        assert number_in(folder) in (1, 2)
        write(folder, 4, 3)
        folder.keep({3, 4})
        assert folder.steps() == [3, 4]
        write(folder, 4, 4)
        assert number_in(folder) == 4
    assert num_operations > 4
    assert number_in(folder) == 2
    assert [name.rstrip("/") for name in tf.io.gfile.listdir(folder.path)] == ["step-00000003"]


def test_one_that_was_being_replaced_is_removed_in_its_turn(monkeypatch, tmp_path):
    folder = Folder(str(tmp_path))
    write(folder, 3, 1)
    os.rename(tmp_path / "step-00000003", tmp_path / ".replaced-step-00000003")
    assert folder.path_of(3) == str(tmp_path / ".replaced-step-00000003")

    write(folder, 4, 2)
    folder.keep({4})

    assert os.listdir(tmp_path) == ["step-00000004"]


def test_what_another_process_may_be_writing_stays(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    here, host = "step-00000003-", socket.gethostname()
    alive = f"{here}{os.getppid()}@{host}"
    stays = [f".unfinished-{each}" for each in (alive, f"removed-{alive}", f"{here}7@elsewhere")]
    goes = [f"{os.getpid()}@{host}", f"{ended.pid}@{host}", "8@elsewhere", "1"]
    goes = [f".unfinished-{here}{each}" for each in goes]
    for name in (*stays, *goes):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.npz").touch()
    old = tmp_path / ".unfinished-step-00000003-8@elsewhere"
    for path in (old / "state.npz", old):
        os.utime(path, (0, 0))

    Folder(str(tmp_path)).keep(set())

    assert sorted(os.listdir(tmp_path)) == sorted(stays)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_is_left_by_another_process_and_cannot_be_read_is_no_error(is_old, tmp_path):
    unfinished = [tmp_path / f".unfinished-step-00000003-{pid}@elsewhere" for pid in (7, 8)]
    unfinished[0].touch()  # No folder.
    unfinished[1].mkdir()
    (unfinished[1] / "state.npz").touch()
    unfinished[1].chmod(0)
    if is_old:
        for path in unfinished:
            os.utime(path, (0, 0))

    with permissions.respected():
        Folder(str(tmp_path)).keep(set())

    assert unfinished[1].exists()


def test_one_that_another_process_has_removed_needs_no_removal(monkeypatch, tmp_path):
    folder, rename = Folder(str(tmp_path)), os.rename
    write(folder, 3, 1)

    def removed_before(path, target):
        shutil.rmtree(path)
        rename(path, target)

    monkeypatch.setattr(os, "rename", removed_before)
    folder.keep(set())

    assert os.listdir(tmp_path) == []


def linked_run(tmp_path):
    """Makes checkpoints 3, of which only a link is in the run, and 4, with links of a person's."""
    folder, archive = Folder(str(tmp_path / "run")), tmp_path / "archive"
    archive.mkdir()
    (archive / "notes.txt").write_text("kept")
    for step in (3, 4):
        write(folder, step, step)
    os.rename(folder.path_of(3), archive / "step-00000003")
    os.symlink(archive / "step-00000003", tmp_path / "run/step-00000003")
    os.symlink(archive, tmp_path / "run/step-00000004/notes")
    os.symlink(tmp_path / "nowhere", tmp_path / "run/step-00000004/nothing")
    return folder


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_nothing_is_removed_through_a_link(prefix, tmp_path):
    linked_run(tmp_path)
    folder = Folder(f"{prefix}{tmp_path}/run")
    write(folder, 5, 5)

    with pytest.warns(UserWarning, match="step-00000003 is a link to a checkpoint") as warned:
        folder.keep({5})
        folder.keep({5})

    assert len(warned) == 1
    assert folder.steps() == [3, 5]
    assert read(str(tmp_path / "archive/step-00000003")).arrays["number"] == 3
    assert (tmp_path / "archive/notes.txt").read_text() == "kept"


@pytest.mark.parametrize("begin_again", [Folder.clear, lambda folder: write(folder, 3, 7)])
def test_of_a_linked_checkpoint_that_is_replaced_the_link_alone_goes(begin_again, tmp_path):
    folder = linked_run(tmp_path)

    begin_again(folder)

    assert not os.path.islink(tmp_path / "run/step-00000003")
    assert read(str(tmp_path / "archive/step-00000003")).arrays["number"] == 3
    assert os.path.exists(tmp_path / "run/step-00000004") == (begin_again != Folder.clear)


def test_a_link_to_nothing_makes_way(tmp_path):
    os.symlink(tmp_path / "nowhere", tmp_path / "step-00000003")

    write(Folder(str(tmp_path)), 3, 7)

    assert number_in(Folder(str(tmp_path))) == 7


@pytest.mark.parametrize("place", ["disk", "elsewhere"])
def test_files_of_others_in_a_checkpoint_stay_and_are_named(place, tmp_path):
    folder = Folder(str(tmp_path) if place == "disk" else f"ram://{uuid.uuid4().hex}")
    write(folder, 3, 1)
    with tf.io.gfile.GFile(f"{folder.path}/step-00000003/notes.txt", "w") as file:
        file.write("kept")

    with pytest.warns(UserWarning, match=r"but not what others .* notes\.txt in .*step-00000003"):
        folder.keep(set())
    folder.keep(set())

    assert folder.steps() == []
    left = "other-files-of-step-00000003" if place == "disk" else "step-00000003"
    assert [each.rstrip("/") for each in tf.io.gfile.listdir(folder.path)] == [left]
    assert tf.io.gfile.listdir(f"{folder.path}/{left}") == ["notes.txt"]


def test_a_copy_of_another_name_can_be_read(tmp_path):
    folder = Folder(str(tmp_path))
    write(folder, 3, 1)
    os.rename(folder.path_of(3), tmp_path / "copy")

    assert read(str(tmp_path / "copy")).arrays["number"] == 1
    with pytest.raises(CorruptCheckpointError, match="step-00000003"):
        folder.read(3)


@pytest.mark.parametrize("name", ["model.weights.h5", "state.npz", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damage_is_found(name, damage, tmp_path):
    folder = Folder(str(tmp_path))
    folder.write(3, {"shape": [7, 8]}, {"number": np.ones(9)}, lambda file: file.write(b"weights"))
    path = tmp_path / "step-00000003" / name
    content = bytearray(path.read_bytes())
    # In the record a digit, so that it can still be parsed.
    place = content.index(b"7") if name == "checkpoint.json" else len(content) // 2
    content[place] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 3] if damage == "truncated" else content)

    with pytest.raises(CorruptCheckpointError, match=f"step-00000003.*{name}"):
        folder.read(3)
    with pytest.warns(UserWarning, match="The checkpoint of step 3 cannot be read"):
        assert folder.newest() is None


@pytest.mark.parametrize("content", ["[]", '{"monitored": {"loss": 0.0}}'])
def test_one_whose_record_is_damaged_is_not_the_best(content, tmp_path):
    folder = Folder(str(tmp_path))
    for step in (1, 2):
        record = {"monitored": {"loss": float(step)}}
        folder.write(step, record, {}, lambda file: file.write(b"weights"))
    (tmp_path / "step-00000002" / "checkpoint.json").write_text(content)

    assert folder.ranked("loss", "min") == [1]
