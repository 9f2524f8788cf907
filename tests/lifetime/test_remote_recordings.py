"""What the chief gets of a task that serves: here both are this process."""

import socket

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.lifetime.remote_recordings import RemoteRecordings, answer_requests
from kerasdist.support.background import in_background
from kerasdist.trace import spans

WORKER = Task("worker", 0)


@pytest.fixture(scope="module")
def address():
    """That of a server which answers until the tests end."""
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    server = tf.distribute.Server(
        tf.train.ClusterSpec({"worker": [address]}), job_name="worker", task_index=0
    )
    in_background(answer_requests, server.target, WORKER)
    return address


def recordings(address):
    jobs = {"chief": ["localhost:1"], "worker": [address], "ps": ["localhost:2"]}
    return RemoteRecordings(Cluster(jobs=jobs, task=Task("chief", 0)))


def test_a_recording_is_what_the_task_did_since_the_start(address):
    remote = recordings(address)

    assert set(remote.start()) == {Task("ps", 0)}
    tf.linalg.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
    recorded, problems = remote.stop()

    assert list(recorded) == [WORKER]
    assert list(spans.of_profile(recorded[WORKER]))
    assert not problems  # Of the task that did not answer; it is asked no more.


def test_a_chief_that_came_back_begins_anew(address):
    recordings(address).start()
    remote = recordings(address)
    remote.start()

    assert list(remote.stop()[0]) == [WORKER]


def test_what_the_task_cannot_do_is_told_once(address):
    remote = recordings(address)

    _, problems = remote.stop()
    assert "Nothing is being recorded" in problems[WORKER]
    assert remote.stop() == ({}, {})
