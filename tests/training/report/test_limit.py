"""What limits a training, from where the time of its workers went."""

import pytest

from kerasdist.training.report.limit import Limit, limit_of
from kerasdist.training.report.rate_meter import Rate
from kerasdist.training.report.worker_share import Pace, WorkerShare


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.1, 0.1, 0.1), "Bottleneck: computation, 70% of a 5.0 ms step (input 10%,"),
        ((0.5, 0.1, 0.1), "Bottleneck: waiting for the next batch, 50% of a 5.0 ms step"),
        ((0.1, 0.6, 0.1), "Bottleneck: messages between workers, 60%"),
        ((0.1, 0.1, 0.7), "Bottleneck: Python code between steps (callbacks, logs), 70%"),
    ],
)
def test_the_largest_share_of_one_device(shares, said):
    assert limit_of([WorkerShare("", *shares)], ms_per_step=5.0).startswith(said)


def test_workers_that_wait_for_the_network_alike():
    workers = [WorkerShare("worker 0", 0.0, 0.6, 0.1), WorkerShare("worker 1", 0.1, 0.5, 0.1)]

    text = limit_of(workers, ms_per_step=5.0)
    assert text.startswith("Bottleneck: messages between workers, 50% of a 5.0 ms step")
    assert "computation 30%, input 10%, between the steps 10%" in text


def test_a_slow_worker_and_what_it_does():
    workers = [WorkerShare("worker 0", 0.0, 0.7, 0.1), WorkerShare("worker 1", 0.6, 0.1, 0.1)]

    text = limit_of(workers, ms_per_step=5.0)
    assert text.startswith("Bottleneck: worker 1, which keeps the other waiting 60% of the time.")
    assert "Of its own time 60% is input" in text


@pytest.mark.parametrize(
    ("idle", "steps", "said"),
    [
        (0.7, 10.0, "Bottleneck: the chief, workers wait 70% of the time for their next steps"),
        (0.1, 10.0, "Bottleneck: computation, 60%"),
        (0.1, 4.0, "Bottleneck: worker 1, which makes 4.0 steps/s, the other 10.0."),
    ],
)
def test_workers_that_keep_their_own_pace(idle, steps, said):
    workers = [
        WorkerShare("worker 0", 0.1, 0.2, idle, steps_per_second=10.0),
        WorkerShare("worker 1", 0.1, 0.2, idle, steps_per_second=steps),
    ]

    assert limit_of(workers, ms_per_step=5.0, pace=Pace.SERVED).startswith(said)


@pytest.mark.parametrize(
    ("exchange", "steps", "dropped", "said"),
    [
        (0.1, 10.0, 0.0, "Bottleneck: worker 2, which keeps the others waiting 60% of the time."),
        (0.7, 10.0, 0.4, "Bottleneck: messages to parameter servers, and waiting for them, 70%"),
        (0.1, 2.0, 0.9, "Late: worker 2, which makes 2.0 batches/s, the others 10.0 each; upd"),
        (1.0, 0.0, 0.0, "Late: worker 2, which makes 0.0 batches/s, the others 10.0 each; upd"),
        (0.1, 2.0, 0.0, "Bottleneck: worker 2, which makes 2.0 batches/s, the others 10.0 each."),
    ],
)
def test_workers_that_make_updates_together(exchange, steps, dropped, said):
    others = [WorkerShare(f"worker {n}", 0.1, 0.7, 0.1, steps_per_second=10.0) for n in range(2)]
    slow = WorkerShare("worker 2", 0.1, exchange, 0.1, steps_per_second=steps, dropped=dropped)

    assert limit_of([*others, slow], ms_per_step=5.0, pace=Pace.UPDATES).startswith(said)


def test_a_late_worker_is_named_beside_what_limits_the_others():
    others = [WorkerShare(f"worker {n}", 0.8, 0.1, 0.1, steps_per_second=10.0) for n in range(2)]
    late = WorkerShare("worker 2", 0.0, 0.1, 0.0, steps_per_second=1.0, dropped=0.9)

    text = limit_of([*others, late], ms_per_step=5.0, pace=Pace.UPDATES)
    assert "90% of its batches were dropped, and computed again. Of its own time 90%" in text
    assert "Bottleneck: waiting for the next batch, 80% of a 5.0 ms step" in text


def test_the_parts_of_a_run_count_by_their_time():
    def rate(secs, share):
        workers = (WorkerShare("", share, 0.0, 0.0),)
        return Rate(num_steps=10, num_examples=40, secs=secs, workers=workers)

    limit = Limit(Pace.PEERS)
    assert limit.sentence() is None

    for part in (rate(1.0, 1.0), None, rate(3.0, 0.8)):
        limit.add(part)

    sentence = limit.sentence()
    assert sentence is not None
    assert sentence.startswith("Bottleneck: waiting for the next batch, 85% of a 200.0 ms step")


def test_unknown_times_limit_nothing():
    limit = Limit(Pace.PEERS)
    limit.add(Rate(num_steps=10, num_examples=40, secs=1.0, workers=()))

    assert limit.sentence() is None
