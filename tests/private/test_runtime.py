"""What is asked of TensorFlow's runtime; tests/cluster shows the messages of its service."""

import subprocess
import sys

import pytest
import tensorflow as tf

from kerasdist.private import runtime

HEARTBEAT = """
from tensorflow.python.eager import context
from kerasdist import Cluster, Task
from kerasdist.private import runtime

cluster = Cluster(jobs={"chief": ["a:1"], "worker": ["b:2", "c:2"]}, task=Task("worker", 1))
runtime.set_heartbeat_timeout(cluster, 2.5)
settings = context.context().coordination_service
print(settings.heartbeat_timeout_in_ms, settings.service_leader)
print([(job.name, job.num_tasks) for job in settings.coordinated_job_list])
"""


def test_tensorflow_may_be_nondeterministic_until_it_is_asked():
    assert not runtime.is_deterministic()  # tests/cluster/test_determinism.py asks it.


def test_global_seed_is_asked_for_without_a_draw():
    tf.random.set_seed(3)
    expected = float(tf.random.uniform([]))

    tf.random.set_seed(3)

    assert runtime.global_seed() == 3
    assert float(tf.random.uniform([])) == expected


def test_a_profile_is_read(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    tf.add(1.0, 1.0)
    tf.profiler.experimental.stop()

    (path,) = tmp_path.rglob("*.xplane.pb")
    space = runtime.parsed_profile(path.read_bytes())
    assert any(line.events for plane in space.planes for line in plane.lines)


@pytest.mark.processes
def test_heartbeat_timeout_reaches_tensorflow():
    # In a process of its own: it is set once and for all.
    result = subprocess.run(
        [sys.executable, "-c", HEARTBEAT], capture_output=True, text=True, timeout=60
    )

    assert result.stdout.splitlines() == [
        "2500 /job:chief/replica:0/task:0",
        "[('chief', 1), ('worker', 2)]",
    ]
