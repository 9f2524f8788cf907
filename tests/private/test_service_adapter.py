"""The service is told how long a worker may be silent; tests/cluster shows its messages."""

import subprocess
import sys

import pytest

HEARTBEAT = """
from tensorflow.python.eager import context
from kerasdist import Cluster, Task
from kerasdist.private import service_adapter

cluster = Cluster(jobs={"chief": ["a:1"], "worker": ["b:2", "c:2"]}, task=Task("worker", 1))
service_adapter.set_heartbeat_timeout(cluster, 2.5)
settings = context.context().coordination_service
print(settings.heartbeat_timeout_in_ms, settings.service_leader)
print([(job.name, job.num_tasks) for job in settings.coordinated_job_list])
"""


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
