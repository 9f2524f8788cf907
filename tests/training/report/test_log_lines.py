"""Lines in the log, with the task that says them."""

import json
import logging
import sys

import pytest

import kerasdist
from kerasdist.cluster import Cluster
from kerasdist.support import environment
from kerasdist.training.report import log_lines
from tests import strategies


def test_one_process_says_the_line_alone(caplog):
    strategy = kerasdist.make_strategy()
    caplog.clear()
    log_lines.say(strategy, "step 3")

    assert [(each.name, each.message) for each in caplog.records] == [("kerasdist", "step 3")]


def test_a_line_is_said_once_before_and_after_the_program_sets_up_logging(capsys, monkeypatch):
    root, strategy = logging.getLogger(), kerasdist.make_strategy()
    monkeypatch.setattr(root, "handlers", [])
    log_lines.say(strategy, "step 3")
    assert capsys.readouterr() == ("", "step 3\n")

    root.addHandler(logging.StreamHandler(sys.stdout))
    log_lines.say(strategy, "step 4")
    assert capsys.readouterr() == ("step 4\n", "")


def test_a_program_may_want_warnings_alone(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("kerasdist").setLevel(logging.WARNING)
    log_lines.say(kerasdist.make_strategy(), "step 3")
    logging.getLogger("kerasdist").setLevel(logging.NOTSET)

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("note", "line"), [(None, "worker 1: step 3"), ("note", "step 3")])
def test_tasks_of_a_cluster_say_who_they_are_unless_a_launcher_does(
    note, line, caplog, monkeypatch
):
    monkeypatch.setenv(environment.NOTE, note) if note else None
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    strategy = strategies.spanning(Cluster.from_env({"TF_CONFIG": json.dumps(task)}))
    log_lines.say(strategy, "step 3")

    assert [each.message for each in caplog.records] == [line]
