"""Whom the chief of parameter servers calls late, by a clock that the test moves."""

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import peer_failure
from kerasdist.lifetime.chief_watch import ChiefWatch
from kerasdist.lifetime.step_watch import StepWatch
from tests.clock import Clock

CLUSTER = Cluster(
    jobs={"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, task=Task("chief", 0)
)


class Job:
    """A chief whose watch looks when a test says so.

    Attributes:
        awaited: The worker that the chief waits for.
        waits_for_data: What that worker answers.
        said: What the watch said.
        told: What it told the other tasks.
        stacks: How often it has shown where the chief is.
    """

    def __init__(self, *, asked=None, **settings):
        self.awaited, self.waits_for_data = None, False
        self.said, self.told, self.stacks = [], [], []
        self._clock = Clock()
        self._watch = ChiefWatch(
            CLUSTER,
            awaited=lambda: self.awaited,
            waits_for_data=asked or (lambda worker: self.waits_for_data),
            tell=self.told.append,
            say=self.said.append,
            show_stacks=lambda: self.stacks.append(1),
            limit_secs=30,
            clock=self._clock,
            **settings,
        )
        self.active, self.call = self._watch.active, self._watch.call

    def look_for(self, secs):
        for _ in range(secs):
            self._clock.sleep(1)
            self._watch.look()


class Ended(Exception):
    """In the place of the end of the process."""


@pytest.fixture(autouse=True)
def process(monkeypatch):
    def end(reason, *_):
        raise Ended(reason)

    monkeypatch.setattr(peer_failure, "end", end)
    monkeypatch.setattr("os._exit", end)


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(StepWatch, "_look_on", lambda watch: None)
    job = Job()
    with job.active():
        with job.call(int, is_first=True):
            pass
        with job.call(int, is_first=False):
            job.look_for(1)
        yield job


@pytest.mark.parametrize(
    ("waits_for_data", "doing"),
    [
        (True, "waiting for its data"),
        (False, "computing its step, or exchanging it with the parameter servers"),
        (None, "it does not say whether it computes or waits for data"),
    ],
)
def test_worker_that_the_chief_waits_for_is_late(job, waits_for_data, doing):
    job.waits_for_data = waits_for_data
    with job.call(int, is_first=False):
        job.awaited = Task("worker", 1)
        job.look_for(20)

    assert job.said == [
        "No step has ended for 13 s; the longest so far took 1 s. worker 1 (c:1) is late: "
        f"{doing}. After 30 s the job ends: make_strategy(step_timeout_secs=...)."
    ]
    assert not job.stacks  # The chief only waits.


def test_chief_that_reads_data_is_late_itself(job):
    with job.call(int, is_first=False):
        job.look_for(20)

    assert "chief 0 (a:1) is late: waiting for its data." in job.said[0]
    assert job.stacks == [1]


def test_chief_that_traces_is_not_called_late_for_its_data(job):
    with job.call(int, is_first=True), pytest.raises(Ended):
        job.look_for(31)

    assert "chief 0 (a:1) is late: tracing its first step, or waiting for it." in job.told[0]


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        ([1], "worker 1 (c:1) is late: waiting for its data."),
        ([0, 1], "worker 0 (b:1), worker 1 (c:1) are late: waiting for their data."),
        (
            [],
            "chief 0 (a:1) waits for an update: workers are computing their batches, or exchanging",
        ),
    ],
)
def test_synchronous_workers_are_asked_whether_they_have_their_batches(job, waiting, said):
    job = Job(are_synchronous=True, asked=lambda worker: worker.index in waiting)
    with job.active():
        with job.call(int, is_first=False):
            job.look_for(1)
        with job.call(int, is_first=False):
            job.look_for(20)

    assert said in job.said[0]


def test_chief_in_a_callback_is_late(job):
    job.look_for(20)

    assert "chief 0 (a:1) is late: between two steps, in a callback" in job.said[0]
    assert job.stacks == [1]


def test_chief_that_waits_for_a_worker_between_two_steps_is_not_late(job):
    job.awaited = Task("worker", 1)
    job.look_for(20)

    assert "worker 1 (c:1) is late: " in job.said[0]


def test_no_places_are_read(job):
    job = Job(read=lambda task: pytest.fail(f"{task} notes none"))
    with job.active():
        job.look_for(20)


def test_job_ends_because_of_the_worker_and_all_hear_it(job):
    with job.call(int, is_first=False):
        job.awaited = Task("worker", 1)
        job.look_for(32)
        with pytest.raises(Ended) as ended:
            job.look_for(1)

    assert job.told == [str(ended.value)]
    assert job.told == [
        "no step has ended for 30 s. worker 1 (c:1) is late: computing its step, or exchanging it "
        "with the parameter servers. Fix what it is waiting for, or raise the limit: "
        "make_strategy(step_timeout_secs=...)."
    ]


def test_job_ends_because_of_the_chief_and_all_hear_it(job, capsys):
    job.look_for(29)
    with pytest.raises(Ended, match="1"):
        job.look_for(1)

    [told] = job.told
    assert told.startswith("chief 0 (a:1) failed: no step has ended for 30 s. chief 0 (a:1) is ")
    said = capsys.readouterr().err
    assert said.startswith("error: chief 0 ends because no step has ended for 30 s. chief 0 (a:1)")
