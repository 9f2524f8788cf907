"""Who is late, and what is said and done about it, by a clock that the test moves."""

import contextlib
import gc
import threading
import weakref

import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import step_watch
from kerasdist.lifetime.step_watch import Progress, StepWatch, ended_early, late_ones
from tests.clock import Clock

WORKERS = ["a:1", "b:1"]
ZERO, ONE = Task("worker", 0), Task("worker", 1)


class Job:
    """Two workers whose watches look when a test says so.

    Attributes:
        watches: Of each worker.
        said: What each worker said.
        ended: Of those that ended, whether they were late, and why.
        num_batches: How many each worker has read.
        stacks: Who has shown its stacks, and how often.
    """

    def __init__(self, clock, *, limit_secs=1000.0):
        self.clock = clock
        self.places = {}
        self.said = {ZERO: [], ONE: []}
        self.stacks = []
        self.ended = {}
        self.num_batches = {ZERO: 0, ONE: 0}
        self.watches = {task: self._watch(task, limit_secs) for task in (ZERO, ONE)}

    def _watch(self, task, limit_secs):
        return StepWatch(
            Cluster(jobs={"worker": WORKERS}, task=task),
            limit_secs=limit_secs,
            note=lambda text: self.places.update({task: text}),
            read=lambda other: self.places.get(other, ""),
            say=self.said[task].append,
            end=lambda cause, is_late: self.ended.update({task: (is_late, cause)}),
            show_stacks=lambda: self.stacks.append(task),
            clock=self.clock,
        )

    def call(self, task, *, is_first=False):
        """Returns the context of a call of the step function."""
        return self.watches[task].call(lambda: self.num_batches[task], is_first=is_first)

    def take_steps(self, count, *, secs=0.1):
        """Lets all workers take steps of so many seconds."""
        for _ in range(count):
            with self.call(ZERO), self.call(ONE):
                self.clock.sleep(secs)
                self.num_batches = {task: each + 1 for task, each in self.num_batches.items()}

    def look_for(self, secs):
        """Lets so many seconds pass; looks in each of them, until a worker has ended."""
        for _ in range(int(secs)):
            self.clock.sleep(1)
            for task, watch in self.watches.items():
                if task not in self.ended:
                    watch.look()


@pytest.fixture
def limit_secs():
    return 1000.0


@pytest.fixture
def job(monkeypatch, limit_secs):
    monkeypatch.setattr(StepWatch, "_look_on", lambda watch: None)
    job = Job(Clock(), limit_secs=limit_secs)
    with job.watches[ZERO].active(), job.watches[ONE].active():
        yield job


def test_worker_in_a_callback_is_late(job):
    job.take_steps(3)
    with job.call(ZERO):
        job.look_for(20)

    [line] = job.said[ZERO]
    assert line == (
        "No step has ended for 13 s; the longest so far took 0.1 s. worker 1 (b:1) is late: "
        "between two steps, in a callback or elsewhere in its program. After 1000 s the job ends: "
        "make_strategy(step_timeout_secs=...)."
    )
    assert job.said[ONE] == [line]  # In its own log too, with where it is.
    assert job.stacks == [ONE]


def test_worker_that_waits_for_data_is_late(job):
    job.take_steps(3)
    with job.call(ZERO), job.call(ONE):
        job.num_batches[ONE] += 1
        job.look_for(20)

    assert "worker 0 (a:1) is late: waiting for its data." in job.said[ZERO][0]
    assert job.said[ONE] == []  # Neither late nor the chief.
    assert job.stacks == [ZERO]


def test_worker_that_computes_is_late_where_another_has_ended_the_step(job):
    job.take_steps(3)
    with job.call(ONE):
        job.num_batches[ONE] += 1
        with job.call(ZERO):
            job.num_batches[ZERO] += 1
        job.look_for(20)

    assert "worker 1 (b:1) is late: computing its step." in job.said[ZERO][0]


def test_call_that_traces_a_function_is_no_late_step(job):
    job.take_steps(3)
    with job.call(ZERO), job.call(ONE):
        for watch in job.watches.values():
            watch.expect_trace()
        job.look_for(100)
    assert job.said == {ZERO: [], ONE: []}

    with job.call(ZERO):  # Nor does it let the steps after it be late.
        job.look_for(20)
    assert "worker 1 (b:1) is late" in job.said[ZERO][0]


def test_nobody_is_late_where_all_are_at_the_same_place(job):
    job.take_steps(3)
    job.look_for(20)

    assert "All workers are at the same place, between two steps" in job.said[ZERO][0]
    assert job.said[ONE] == []
    assert sorted(job.stacks, key=str) == [ZERO, ONE]


def test_worker_that_is_out_of_its_steps_is_named(job):
    job.take_steps(3)
    with job.call(ZERO):
        job.look_for(1)
        job.watches[ONE]._num_active = 0  # Its `fit` ends.
        job.look_for(20)

    assert "worker 1 (b:1) is not in its steps: its `fit` has ended" in job.said[ZERO][0]


def test_steps_of_a_call_are_progress(job):
    job.take_steps(3)
    with job.call(ZERO), job.call(ONE):
        for _ in range(10):
            job.num_batches = {ZERO: job.num_batches[ZERO] + 1, ONE: job.num_batches[ONE] + 1}
            job.look_for(8)

    assert job.said == {ZERO: [], ONE: []}


def test_slow_steps_are_compared_with_slow_steps(job):
    job.take_steps(3, secs=10)
    with job.call(ZERO), job.call(ONE):
        job.look_for(52)
        assert job.said[ZERO] == []
        job.look_for(2)
        assert "the longest so far took 10 s" in job.said[ZERO][0]


def test_tracing_takes_its_time(job):
    with job.call(ZERO, is_first=True), job.call(ONE, is_first=True):
        job.look_for(120)
    job.take_steps(3)
    with job.call(ZERO, is_first=True), job.call(ONE, is_first=True):  # `evaluate` begins.
        job.look_for(120)
        assert job.said[ZERO] == []
        job.look_for(5)
        assert len(job.said[ZERO]) == 1


def test_before_the_first_step_there_is_no_longest_one(job):
    with job.call(ZERO, is_first=True), job.call(ONE, is_first=True):
        job.look_for(125)

    assert job.said[ZERO][0].startswith("No step has ended for 123 s. All workers are at the same")


def test_it_is_said_ever_more_rarely_and_that_it_goes_on(job):
    job.take_steps(3)
    with job.call(ZERO):
        job.look_for(112)
    said_at = [float(line.partition(" s;")[0].rpartition(" ")[2]) for line in job.said[ZERO]]
    assert said_at == pytest.approx([13, 26, 52, 104], abs=3)
    assert job.stacks == [ONE]

    job.take_steps(1)
    job.look_for(1)
    assert job.said[ZERO][-1] == "worker 0 goes on."
    assert job.places == {ZERO: "", ONE: ""}  # Of old ones nobody would know.


@pytest.mark.parametrize("limit_secs", [30.0])
def test_late_worker_ends_first_and_the_others_after_it(job):
    job.take_steps(3)
    with job.call(ZERO):
        job.look_for(31)
        assert job.ended == {
            ONE: (
                True,
                "no step has ended for 30 s. worker 1 (b:1) is late: between two steps, in a "
                "callback or elsewhere in its program. Fix what it is waiting for, or raise the "
                "limit: make_strategy(step_timeout_secs=...).",
            )
        }
        job.look_for(3)
        assert not job.ended[ZERO][0]


def test_job_whose_data_has_ended_on_one_worker_ends(job):
    job.take_steps(3)
    with job.call(ONE):  # Which found no further batch.
        pass
    with job.watches[ONE].end_of_epoch(), job.call(ZERO):
        job.num_batches[ZERO] += 1
        job.look_for(30)

    (is_late, cause), (is_also_late, same) = job.ended[ONE], job.ended[ZERO]
    assert (is_late, is_also_late) == (True, False)
    assert cause == same
    told = "ended on worker 1 (b:1) after 3 batches in all, and other workers have more of it"
    assert f"{told}: worker 0 (a:1) has read 4. All must read" in cause


def test_after_an_error_at_the_end_of_its_data_a_worker_says_whose_has_ended(job):
    job.take_steps(3)
    watch = job.watches[ONE]
    with pytest.raises(KeyError), watch.active(), watch.end_of_epoch():
        raise KeyError  # Of the two that meet there, only one may fail.
    with job.call(ZERO):
        job.num_batches[ZERO] += 1
        job.watches[ZERO].look()
        job.clock.sleep(6)
        job.watches[ZERO].look()  # It waits for the other one, and has noted its place.

        told = watch.describe_early_end()
        watch.look()

    assert "worker 1 (b:1) after 3 batches in all, and other workers have more of it: w" in told
    assert job.places[ONE]  # For the others.


def test_places_of_the_others_are_read_once_in_a_look(job):
    job.take_steps(3)
    job.look_for(1)
    read = []
    job.watches[ZERO]._read = read.append
    job.clock.sleep(20)
    job.watches[ZERO].look()

    assert read == [ONE]


def test_worker_that_is_slow_after_its_epoch_has_no_less_data(job):
    job.take_steps(3)
    with job.watches[ZERO].end_of_epoch(), job.watches[ONE].end_of_epoch():
        job.look_for(60)
    with job.call(ZERO):  # Of the next epoch, while the other one saves the model.
        job.num_batches[ZERO] += 1
        job.look_for(60)

    assert job.ended == {}
    assert "worker 1 (b:1) is late: between two steps, in a callback" in job.said[ONE][-1]


def test_job_that_is_not_in_fit_is_not_watched(job):
    job.take_steps(3)
    for watch in job.watches.values():
        watch._num_active = 0
    job.look_for(2000)

    assert job.said == {ZERO: [], ONE: []}
    assert job.ended == {}
    assert job.places == {}


@pytest.mark.parametrize("is_active", [True, False])
def test_model_is_not_kept_alive(is_active):
    class Model:
        def count(self):
            return 0

    model = Model()
    watch = StepWatch(Cluster(jobs={"worker": WORKERS}, task=ZERO), limit_secs=1)
    around = watch.active() if is_active else contextlib.nullcontext()  # In `train_on_batch`.
    with around, watch.call(model.count, is_first=True):
        pass
    of_model = weakref.ref(model)
    del model
    gc.collect()

    assert of_model() is None


def test_who_has_met_the_others_since_then_has_not_ended_early():
    ended, later = Progress(3, 8, True, has_ended=True), Progress(4, 9, False, num_epochs=1)

    assert ended_early({ZERO: ended, ONE: later}) == {}
    assert ended_early({ZERO: ended, ONE: Progress(4, 9, False)}) == {ZERO: ended}


@pytest.mark.parametrize(
    ("zero", "one", "late"),
    [
        (Progress(5, 7, False), Progress(5, 7, False), set()),
        (Progress(5, 7, True), Progress(5, 7, True), set()),
        (Progress(5, 7, False), Progress(4, 7, True), {ONE}),
        (Progress(5, 6, False), Progress(5, 7, False), {ZERO}),
        # It has ended the call in which the other one still is.
        (Progress(5, 7, True), Progress(5, 7, False), {ONE}),
    ],
)
def test_late_is_who_is_behind(zero, one, late):
    assert late_ones({ZERO: zero, ONE: one}) == late


def test_stacks_say_where_the_program_is(capfd):
    thread = threading.Thread(target=step_watch._print_stacks)
    thread.start()
    thread.join()

    said = capfd.readouterr().err
    assert said.startswith("The program is here:")
    assert "in test_stacks_say_where_the_program_is\n" in said
    assert "in _print_stacks\n" not in said


def test_a_process_that_does_not_end_at_its_limit_is_stuck():
    clock = Clock()
    watch = Job(clock, limit_secs=30.0).watches[ZERO]
    clock.sleep(100)
    assert watch.describe_stuck() == ""  # Nothing runs.
    with watch.active():
        clock.sleep(31)
        assert watch.describe_stuck() == ""  # It has some seconds to end by itself.
        clock.sleep(10)
        assert watch.describe_stuck().startswith("no step has ended for 41 s")
