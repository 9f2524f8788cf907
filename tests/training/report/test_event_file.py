"""Event files of a training that begins again, in this process or in another one."""

import shutil

import pytest
import tensorflow as tf

from kerasdist.support import memory
from kerasdist.training.report.event_file import EventFile
from tests.event_files import scalars


def write(folder, *steps):
    file = EventFile(str(folder))
    for step in steps:
        file.write(step, scalars={"loss": float(step)})
    file.close()


def steps_in(folder):
    return sorted(step for _, step in scalars(folder))


@pytest.fixture
def another_process(monkeypatch):
    """Lets this process forget what it has written."""

    def begin():
        monkeypatch.setattr(memory.PROCESS, "last_event_steps", {})

    return begin


def test_what_a_killed_run_has_written_after_the_step_is_forgotten(another_process, tmp_path):
    write(tmp_path, 1, 2, 3, 4)
    another_process()

    EventFile(str(tmp_path)).forget_after(2)

    assert steps_in(tmp_path) == [1, 2]


def test_a_file_that_cannot_be_written_anew_leaves_no_other(another_process, monkeypatch, tmp_path):
    write(tmp_path, 1, 2, 3)
    another_process()
    files = sorted(tmp_path.iterdir())

    def refuse(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io.gfile, "rename", refuse)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        EventFile(str(tmp_path), is_strict=True).forget_after(2)

    assert sorted(tmp_path.iterdir()) == files


def test_the_name_of_the_folder_does_not_matter(another_process, tmp_path):
    folder = tmp_path / "tfevents-test"
    write(folder, 1, 2, 3)
    another_process()

    EventFile(str(folder), is_strict=True).forget_after(2)

    assert steps_in(folder) == [1, 2]


def test_events_of_another_writer_stay(tmp_path):
    write(tmp_path, 1, 2)
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        tf.summary.scalar("epoch_loss", 0.5, step=30)

    EventFile(str(tmp_path)).forget_after(1)

    assert steps_in(tmp_path) == [1, 30]


def test_a_fit_that_goes_back_in_the_same_process_forgets_its_own(tmp_path):
    write(tmp_path, 1, 2, 3)

    EventFile(str(tmp_path)).forget_after(1)
    write(tmp_path, 2)

    assert steps_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("is_kept", [False, True], ids=["with its folder", "alone"])
def test_a_file_that_is_deleted_while_it_is_written_is_made_again(is_kept, tmp_path):
    file = EventFile(str(tmp_path / "run"), is_strict=True)
    file.write(1, scalars={"loss": 1.0})
    shutil.rmtree(tmp_path / "run")
    if is_kept:
        (tmp_path / "run").mkdir()

    file.write(2, scalars={"loss": 2.0})
    file.write(3, scalars={"loss": 3.0})
    file.close()

    assert steps_in(tmp_path / "run") == [2, 3]
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_a_thousand_fits_in_a_row_look_at_no_file_twice(tmp_path, monkeypatch):
    looks = []
    glob = tf.io.gfile.glob
    monkeypatch.setattr(tf.io.gfile, "glob", lambda path: looks.append(path) or glob(path))

    for step in range(1, 6):
        EventFile(str(tmp_path)).forget_after(step - 1)
        write(tmp_path, step)

    assert len(looks) == 1
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]
