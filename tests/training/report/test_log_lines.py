"""Lines in the log, with the task that says them."""

import json
import types

import kerasdist
from kerasdist.cluster import Cluster
from kerasdist.training.report import log_lines


def test_one_process_says_the_line_alone(caplog):
    log_lines.say(kerasdist.make_strategy(), "step 3")

    assert [(each.name, each.message) for each in caplog.records] == [("kerasdist", "step 3")]


def test_tasks_of_a_cluster_say_who_they_are(caplog):
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    strategy = types.SimpleNamespace(cluster=Cluster.from_env({"TF_CONFIG": json.dumps(task)}))
    log_lines.say(strategy, "step 3")

    assert [each.message for each in caplog.records] == ["worker 1: step 3"]
