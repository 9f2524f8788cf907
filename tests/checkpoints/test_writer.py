"""Which checkpoints are kept, and what is said of those that the disk does not take."""

import errno
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kerasdist.checkpoints import Folder, Writer
from kerasdist.checkpoints import writer as writers
from kerasdist.support import environment, launch_note
from tests.warned import warned_by

NO_SPACE = OSError("No space left on device")


def writer(path, **arguments):
    defaults: dict = {"keep": 2, "keep_best": 1, "monitor": "loss", "mode": "min", "raises": False}
    return Writer(Folder(str(path)), **(defaults | arguments))


def write(writer, step, *, loss=1.0, beside=False, arrays=None, save=None):
    to_disk = writer.write_beside if beside else writer.write
    record = {"monitored": {"loss": loss}}
    to_disk(step, record, arrays or {}, save or (lambda file: file.write(b"weights")))


def refuse(_):
    raise NO_SPACE


@pytest.mark.parametrize(("mode", "kept"), [("min", [2, 4, 5]), ("max", [3, 4, 5])])
def test_the_newest_and_the_best_are_kept(mode, kept, tmp_path):
    ours = writer(tmp_path, mode=mode)
    for step, loss in enumerate([5.0, 1.0, 9.0, 6.0, 4.0], start=1):
        write(ours, step, loss=loss)

    assert Folder(str(tmp_path)).steps() == kept


def test_another_writer_in_the_folder_is_named_once(tmp_path):
    theirs = Folder(str(tmp_path))

    def write_as_other(step, *, secs=0.0):
        record = {"writer": "7@elsewhere", "time": time.time() + secs}
        theirs.write(step, record, {}, lambda file: file.write(b""))

    write_as_other(1, secs=600.0)  # The one that was killed before; its clock was ahead.
    ours = writer(tmp_path)
    assert warned_by(lambda: write(ours, 1)) == []
    assert warned_by(lambda: write(ours, 2)) == []
    write_as_other(3, secs=-600.0)
    (told,) = warned_by(lambda: [write(ours, step) for step in (3, 4)])
    assert told.startswith(f"Process 7 on 'elsewhere' writes checkpoints into '{tmp_path}', too.")
    write_as_other(5)
    assert warned_by(lambda: write(ours, 5)) == []


def test_no_record_is_read_where_none_is_the_best(monkeypatch, tmp_path):
    monkeypatch.delattr(Folder, "ranked")
    ours = writer(tmp_path, keep_best=0)
    for step in (1, 2, 3):
        write(ours, step)

    assert Folder(str(tmp_path)).steps() == [2, 3]


def test_beside_the_training_the_arrays_of_that_moment_are_written(monkeypatch, tmp_path):
    goes_on, array, to_disk = threading.Event(), np.zeros(2), Folder.write

    def slow_write(*arguments):
        assert goes_on.wait(30)
        to_disk(*arguments)

    monkeypatch.setattr(Folder, "write", slow_write)
    ours = writer(tmp_path)
    write(ours, 1, beside=True, arrays={"metric": array})
    array += 1
    goes_on.set()
    ours.wait()

    assert Folder(str(tmp_path)).read(1).arrays["metric"].tolist() == [0, 0]


def test_what_the_disk_does_not_take_is_told_once_until_it_takes_one(tmp_path):
    ours = writer(tmp_path)

    with pytest.warns(UserWarning, match="of step 1 cannot be written .* No space") as told:
        write(ours, 1, save=refuse)
        write(ours, 2, save=refuse)
    assert [Path(each.filename).name for each in told] == [Path(__file__).name]
    assert ours.describe_newest() == f"No checkpoint could be written to {tmp_path}."
    write(ours, 3)
    assert not ours.has_failed
    with pytest.warns(UserWarning, match="of step 4 cannot be written"):
        write(ours, 4, save=refuse)

    assert ours.has_failed
    assert Folder(str(tmp_path)).steps() == [3]
    assert ours.describe_newest().endswith(f"The newest is {tmp_path}/step-00000003")


def test_on_a_full_disk_the_oldest_makes_room_for_the_newest(monkeypatch, tmp_path):
    folder, room, to_disk = Folder(str(tmp_path)), 3, Folder.write

    def write_where_there_is_room(folder, *given):
        if len(folder.steps()) >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        to_disk(folder, *given)

    monkeypatch.setattr(Folder, "write", write_where_there_is_room)
    ours = writer(tmp_path, keep=5)
    told = warned_by(
        lambda: [write(ours, step, loss=loss) for step, loss in enumerate([9, 1, 5, 3, 4])]
    )

    assert folder.steps() == [1, 3, 4]  # The best one stays.
    assert len(told) == 1 and "that of step 0 is removed for that of step 3" in told[0]
    room = 0
    with pytest.warns(UserWarning, match="of step 5 cannot be written"):
        write(ours, 5)
    write(ours, 6)
    assert folder.steps() == [1, 4]  # It has cost one.


def test_an_error_beside_the_training_is_raised_where_it_is_awaited(monkeypatch, tmp_path):
    monkeypatch.setattr(Folder, "write", lambda *_: refuse(None))
    ours = writer(tmp_path, raises=True)
    write(ours, 1, beside=True)

    with pytest.raises(OSError, match="No space"):
        ours.wait()
    ours.wait()  # Once.


def test_the_end_waits_for_what_is_written_but_not_for_a_disk_that_hangs(monkeypatch, tmp_path):
    goes_on, to_disk = threading.Event(), Folder.write

    def hang(*arguments):
        assert goes_on.wait(30)
        to_disk(*arguments)

    ours = writer(tmp_path)
    write(ours, 1, beside=True)
    ours.end()
    assert Folder(str(tmp_path)).steps() == [1]
    monkeypatch.setattr(Folder, "write", hang)
    monkeypatch.setattr(writers, "_END_SECS", 0.1)
    write(ours, 2, beside=True)
    (told,) = warned_by(ours.end)
    assert told == f"The checkpoint of step 2 was not written to '{tmp_path}' in 0.1 s."
    goes_on.set()


@pytest.mark.parametrize("beside", [False, True])
def test_a_launcher_hears_of_each_that_is_complete(beside, monkeypatch, tmp_path):
    note = tmp_path / "note"
    monkeypatch.setenv(environment.NOTE, str(note))
    ours = writer(tmp_path / "run")
    write(ours, 3, beside=beside)
    ours.wait()
    monkeypatch.setattr(Folder, "write", lambda *_: refuse(_))
    warned_by(lambda: (write(ours, 6, beside=beside), ours.wait()))
    assert launch_note.newest_step(note) == 3
