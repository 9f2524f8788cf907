"""What a task says of itself, by a clock that the test moves."""

import threading

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.status import task_status
from kerasdist.status.number import Number, to_json
from kerasdist.status.task_status import TaskStatus, of_process
from tests.clock import Clock

STEP = Number("step", 7, "Updates.")


@pytest.fixture
def status(monkeypatch):
    monkeypatch.setenv("KERASDIST_RESTART_COUNT", "2")
    monkeypatch.setenv("KERASDIST_RUN_ID", "r1")
    found = TaskStatus(Clock())
    found.begin(Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", 1)))
    return found


def test_the_labels_name_the_run_and_the_task(status):
    assert status.labels == {"run_id": "r1", "task_type": "worker", "task_index": "1"}


def test_workers_and_restarts_are_known_before_they_meet(status):
    numbers = to_json(status.numbers())

    assert (numbers["workers"], numbers["restarts_total"]) == (2, 2)
    assert numbers["state"]["starting"] == 1


def test_a_worker_is_ready_once_it_has_made_a_step(status):
    assert "waits for the other tasks" in status.describe_not_ready()
    status.note_joined(None)
    assert "no step of `fit` has ended" in status.describe_not_ready()
    status.begin_training(list)
    assert status.describe_not_ready()
    status.note_step()
    assert not status.describe_not_ready()
    status.end_training()  # Between two fits it stays so.
    assert not status.describe_not_ready()


def test_a_task_that_serves_is_ready(status):
    status.state = task_status.SERVING

    assert not status.describe_not_ready()


def test_another_strategy_in_a_fit_changes_nothing(status):
    status.note_joined(lambda: "stuck")
    status.begin_training(list)
    status.note_joined(None)

    assert status.state == task_status.TRAINING
    assert status.describe_stuck() == "stuck"


def test_the_last_numbers_of_a_fit_stay(status):
    status.begin_training(lambda: [STEP])
    status.end_training()

    assert to_json(status.numbers())["step"] == 7


def test_who_reads_does_not_wait_for_a_server_that_is_silent(status, monkeypatch):
    monkeypatch.setattr(task_status, "_READ_SECS", 0.05)
    answered, num_reads = threading.Event(), []

    def read():
        num_reads.append(1)
        if len(num_reads) > 1:
            answered.wait(60)
        return [STEP]

    status.begin_training(read)
    found = [to_json(status.numbers())["step"] for _ in range(4)]

    answered.set()
    assert found == [7] * 4
    assert len(num_reads) == 2  # It asks no more until that one has answered.


def test_an_error_of_a_reading_is_not_told(status):
    status.begin_training(lambda: [STEP])
    status.numbers()
    status._read_training = lambda: 1 / 0

    assert to_json(status.numbers())["step"] == 7


def test_the_age_of_a_checkpoint_is_that_of_the_moment(status):
    status.note_checkpoint(120, written_at=status._clock() - 5, secs=2.0)
    status._clock.secs += 10
    numbers = to_json(status.numbers())

    assert numbers["checkpoint_step"] == 120
    assert numbers["checkpoint_age_seconds"] == 15
    assert numbers["checkpoint_duration_seconds"] == 2


def test_nobody_knows_how_long_an_earlier_process_took(status):
    status.note_checkpoint(120, written_at=1.0)

    assert "checkpoint_duration_seconds" not in to_json(status.numbers())


def test_a_process_has_one_status():
    assert of_process() is of_process()
