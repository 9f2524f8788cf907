"""Logs are read when somebody uses them, once, and are a dict of floats."""

import copy
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks.lazy_logs import LazyLogs, as_numbers, nesting_of
from tests import strategies

USES = {
    "item": lambda logs: logs["loss"],
    "get": lambda logs: logs.get("loss"),
    "in": lambda logs: "loss" in logs,
    "len": len,
    "union": lambda logs: logs | {"more": 1.0},
    "union from the right": lambda logs: {"more": 1.0} | logs,
    "iteration": list,
    "items": lambda logs: logs.items(),
    "dict": dict,
    "unpacking": lambda logs: {**logs},
    "copy": lambda logs: logs.copy(),
    "copy of the module": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda logs: pickle.loads(pickle.dumps(logs)),
    "json": json.dumps,
    "keyword arguments": lambda logs: dict(**logs),
    "format": lambda logs: "{loss}".format_map(logs),
    "repr": repr,
    "comparison": lambda logs: logs == {},
}
EXPECTED = {
    "item": 0.5,
    "get": 0.5,
    "in": True,
    "len": 2,
    "union": {"accuracy": 0.25, "loss": 0.5, "more": 1.0},
    "union from the right": {"accuracy": 0.25, "loss": 0.5, "more": 1.0},
    "iteration": ["accuracy", "loss"],
    "items": {"accuracy": 0.25, "loss": 0.5}.items(),
    "dict": {"accuracy": 0.25, "loss": 0.5},
    "unpacking": {"accuracy": 0.25, "loss": 0.5},
    "copy": {"accuracy": 0.25, "loss": 0.5},
    "copy of the module": {"accuracy": 0.25, "loss": 0.5},
    "deep copy": {"accuracy": 0.25, "loss": 0.5},
    "pickle": {"accuracy": 0.25, "loss": 0.5},
    "json": '{"accuracy": 0.25, "loss": 0.5}',
    "keyword arguments": {"accuracy": 0.25, "loss": 0.5},
    "format": "0.5",
    "repr": "{'accuracy': 0.25, 'loss': 0.5}",
    "comparison": False,
}


def counted_logs():
    reads = []

    def read():
        reads.append(1)
        return {"accuracy": 0.25, "loss": 0.5}

    return LazyLogs(read), reads


def test_nothing_is_read_before_the_first_use():
    logs, reads = counted_logs()

    assert isinstance(logs, dict)
    assert logs is not None
    assert not logs.is_read
    assert not reads


@pytest.mark.parametrize("use", USES)
def test_logs_are_used_like_a_dict_and_read_once(use):
    logs, reads = counted_logs()

    assert USES[use](logs) == EXPECTED[use]
    assert USES[use](logs) == EXPECTED[use]
    assert logs.is_read
    assert len(reads) == 1


def test_a_callback_may_add_to_the_logs():
    logs, _ = counted_logs()

    logs["learning_rate"] = 0.1

    assert dict(logs) == {"accuracy": 0.25, "loss": 0.5, "learning_rate": 0.1}


def test_copy_does_not_share_what_is_added():
    logs, _ = counted_logs()

    logs.copy()["extra"] = 1.0

    assert "extra" not in logs
    assert type(logs.copy()) is type(copy.copy(logs)) is dict


def test_results_of_metrics_become_floats_and_nested_ones_flat():
    strategies.get("2 replicas")  # Must be there before the first tensor of the process.
    metrics = {"loss": tf.constant(0.5), "nested": {"a": np.float32(0.25), "b": 2}}

    numbers = as_numbers(metrics)

    assert numbers == {"loss": 0.5, "a": 0.25, "b": 2.0}
    assert {type(value) for value in numbers.values()} == {float}


def test_the_usual_default_reads_nothing():
    logs, reads = counted_logs()

    logs = logs or {}

    assert not reads


def test_numbers_are_put_back_into_the_dicts_of_the_step():
    step = {"loss": 1, "parts": {"loss": 1, "deeper": {"a": 2}}}

    logs = LazyLogs(lambda: {"a": 2, "loss": 1}, nesting=nesting_of(step))
    logs["rate"] = 3

    assert logs.nested() == {**step, "rate": 3}
