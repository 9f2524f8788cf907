"""The words that a task leaves for its launcher."""

from kerasdist.support import environment, launch_note


def test_the_newest_step_is_that_of_the_last_checkpoint(monkeypatch, tmp_path):
    note = tmp_path / "note"
    monkeypatch.setenv(environment.NOTE, str(note))
    assert launch_note.newest_step(note) is None
    launch_note.add(launch_note.BEGUN)
    assert launch_note.newest_step(note) is None
    for step in (120, 240, 180):  # A damaged one may be passed over.
        launch_note.add_checkpoint(step)
    assert launch_note.newest_step(note) == 180
    assert launch_note.is_in_call(note)


def test_a_task_reads_of_a_loss_what_its_launcher_tells_it(monkeypatch, tmp_path):
    note = tmp_path / "worker-0.note"
    assert launch_note.told_loss() == ""
    monkeypatch.setenv(environment.NOTE, str(note))
    assert launch_note.told_loss() == ""
    launch_note.add(launch_note.BEGUN)
    launch_note.tell_loss(note, "worker 1 is gone.")
    assert launch_note.told_loss() == "worker 1 is gone."
    launch_note.remove(note)
    assert launch_note.told_loss() == ""
    assert list(tmp_path.iterdir()) == []


def test_the_newest_step_is_looked_for_at_the_end(monkeypatch, tmp_path):
    note = tmp_path / "note"
    monkeypatch.setenv("KERASDIST_NOTE", str(note))
    for step in range(1000):
        launch_note.add_checkpoint(step)
        launch_note.add(launch_note.BEGUN)

    assert launch_note.newest_step(note) == 999
