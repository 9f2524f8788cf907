"""Where the time of workers goes, as tags of an event file."""

import pytest

from kerasdist.training.report import worker_share
from kerasdist.training.report.worker_share import Pace, WorkerShare


@pytest.mark.parametrize(
    ("workers", "pace"),
    [
        ([WorkerShare("", 0.1, 0.2, 0.3)], Pace.PEERS),
        ([WorkerShare(f"worker {n}", 0.1 * n, 0.2, 0.3) for n in range(12)], Pace.PEERS),
        ([WorkerShare("worker 0", 0.1, 0.2, 0.3, 4.0, 64.0, 1.5)], Pace.SERVED),
        (
            [WorkerShare(f"worker {n}", 0.1, 0.2, 0.3, 4.0, 64.0, 1.5, 0.5) for n in (0, 1)],
            Pace.UPDATES,
        ),
    ],
)
def test_tags_tell_all(workers, pace):
    tags = worker_share.tags_of(workers, pace)

    assert worker_share.of_tags(tags) == workers
    assert worker_share.pace_in(tags) is pace


def test_the_mean_staleness_is_that_of_a_step():
    workers = [
        WorkerShare("worker 0", 0.0, 0.0, 0.0, steps_per_second=9.0, staleness=1.0),
        WorkerShare("worker 1", 0.0, 0.0, 0.0, steps_per_second=1.0, staleness=11.0),
    ]

    tags = worker_share.tags_of(workers, Pace.SERVED)
    assert tags["staleness/mean"] == pytest.approx(2.0)
    assert tags["staleness/worker 1"] == 11.0


@pytest.mark.parametrize("pace", Pace)
def test_nothing_is_told_of_unknown_times(pace):
    assert worker_share.tags_of((), pace) == {}


def test_one_device_has_no_workers():
    tags = worker_share.tags_of([WorkerShare("", 0.1, 0.2, 0.3)], Pace.PEERS)

    assert tags == {
        "input_wait_share": 0.1,
        "communication_share": 0.2,
        "between_steps_share": 0.3,
    }
    assert worker_share.of_tags({"loss": 1.0}) == []
