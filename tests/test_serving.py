"""What a task that serves hears of its chief, by a clock that the test moves."""

import concurrent.futures
import functools
import os

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime import serving
from tests.clock import Clock

CLUSTER = Cluster(jobs={"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, task=Task("worker", 0))


@pytest.mark.parametrize(
    ("is_silent", "given_up_at"),
    [
        (lambda secs: True, 30),
        (lambda secs: secs > 100, 130),
        (lambda secs: secs % 25 or secs > 200, 230),  # It answers now and then.
    ],
)
def test_chief_is_given_up_when_it_has_been_silent_for_long(monkeypatch, is_silent, given_up_at):
    clock = Clock()
    monkeypatch.setattr(
        serving, "find_problem", lambda address: "refused" if is_silent(clock() - 1000) else ""
    )
    cause = serving._watch_chief(CLUSTER, 30, clock, clock.sleep)

    assert cause == "chief 0 (a:1) is gone, for 30 s: refused."
    assert clock() == 1000 + given_up_at


def test_the_shutdown_message_is_heard_though_a_session_breaks(monkeypatch):
    clock, broken = Clock(), [tf.errors.AbortedError(None, None, "the session is gone")] * 2

    def hear(target, task):
        if broken:
            raise broken.pop()
        return "the disk is full"

    monkeypatch.setattr(serving.shutdown_message, "receive", hear)

    assert serving._hear("grpc://b:1", Task("worker", 0), clock.sleep) == "the disk is full"
    assert clock() == 1002


@pytest.mark.parametrize(("chosen", "number"), [("1", 4), ("9", 9), ("", os.cpu_count())])
def test_more_operations_run_than_there_are_tasks(chosen, number, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", chosen)

    assert serving._num_threads(CLUSTER) == max(number, 4)


def test_a_number_of_threads_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "all")

    with pytest.raises(ValueError, match=r"must be a number\..*TF_NUM_INTEROP_THREADS='all'"):
        serving._num_threads(CLUSTER)


@pytest.mark.parametrize("error", [None, OSError("no room")])
def test_what_ends_the_recordings_is_said(error, capfd):
    recording = concurrent.futures.Future()
    recording.add_done_callback(functools.partial(serving._tell_of_error, CLUSTER.task))
    recording.set_exception(error) if error else recording.set_result(None)

    told = "worker 0 records no more traces: OSError: no room\n" if error else ""
    assert capfd.readouterr().err == told
