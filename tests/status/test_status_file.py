"""The file of a task, by a sleep that the test ends."""

import json
import threading

import pytest

from kerasdist.cluster import Cluster
from kerasdist.status.start import start
from kerasdist.status.status_file import StatusFile
from kerasdist.status.task_status import TaskStatus, of_process
from tests.warned import warned_by


@pytest.fixture
def status():
    found = TaskStatus()
    found.begin(Cluster.local())
    return found


class Sleep:
    """Waits until a test lets it go on."""

    def __init__(self):
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, secs):
        self.begun.release()
        self.ended.acquire()

    def wait_for_begin(self):
        assert self.begun.acquire(timeout=30)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_added_now_then_and_at_the_end(tmp_path, status):
    path, sleep = tmp_path / "state.jsonl", Sleep()
    path.write_text("{}\n")  # Of an earlier start of the job.
    file = StatusFile(str(path), status, sleep)
    file.start()
    sleep.wait_for_begin()
    status.note_joined(None)
    sleep.ended.release()
    sleep.wait_for_begin()
    file.finish()
    sleep.ended.release()

    _, *states = [line.get("state") for line in lines_of(path)]
    assert states[:3] == ["starting", "joined", "ended"]
    assert lines_of(path)[1]["workers"] == 1


def test_the_text_for_the_collector_is_replaced_as_a_whole(tmp_path, status):
    path = tmp_path / "job.prom"
    file = StatusFile(str(path), status, lambda secs: None)
    file._write()
    file.finish()

    text = path.read_text()
    assert text.count("# TYPE kerasdist_workers gauge") == 1
    assert 'kerasdist_state{task_type="worker",task_index="0",state="ended"} 1\n' in text
    assert [each.name for each in tmp_path.iterdir()] == ["job.prom"]


def test_a_disk_that_fills_up_later_is_told_once(tmp_path, status, capsys):
    folder = tmp_path / "runs"
    folder.mkdir()
    file = StatusFile(str(folder / "state.jsonl"), status)
    folder.rmdir()
    file._try()
    file._try()

    assert capsys.readouterr().err.count("KERASDIST_STATUS_FILE: the state cannot be written") == 1


def test_a_file_that_cannot_be_written_is_told_and_fails_nothing(tmp_path):
    environ = {"KERASDIST_STATUS_FILE": str(tmp_path / "absent" / "state.jsonl")}

    (warning,) = warned_by(lambda: start(Cluster.local(), at_end=print, environ=environ))
    assert warning.startswith("KERASDIST_STATUS_FILE: ")
    assert not of_process().is_watched


def test_the_file_is_read_and_finished(tmp_path):
    path, ends = tmp_path / "state.jsonl", []
    start(Cluster.local(), at_end=ends.append, environ={"KERASDIST_STATUS_FILE": str(path)})
    (finish,) = ends
    finish()

    assert of_process().is_watched
    assert lines_of(path)[-1]["state"] == "ended"
