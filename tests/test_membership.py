"""A process joins its cluster once."""

import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.strategies import membership
from kerasdist.support import memory


@pytest.fixture(autouse=True)
def not_joined(monkeypatch):
    monkeypatch.setattr(memory.PROCESS, "joined", None)


def arguments(worker="b:1", **changes):
    """Returns arguments made anew, as each call of a script makes them."""
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1 << 20)
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    return {
        "cluster": Cluster(jobs={"worker": ["a:1", worker]}, task=Task("worker", 0)),
        "devices": ("CPU:0",),
        "communication_options": options,
        "variable_partitioner": partitioner,
        **changes,
    }


def test_the_same_call_finds_the_strategy_of_the_first():
    assert membership.find(arguments()) is None

    membership.note("a strategy", arguments())

    assert membership.find(arguments()) == "a strategy"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"worker": "c:1"}, "cluster=.*b:1.*, now .*c:1"),
        ({"devices": ("CPU:0", "CPU:1")}, r"devices=\('CPU:0',\), now \('CPU:0', 'CPU:1'\)"),
        (
            {"variable_partitioner": tf.distribute.experimental.partitioners.Partitioner()},
            "variable_partitioner=.*, now ",
        ),
        ({"variable_partitioner": lambda shape, dtype: [1]}, "variable_partitioner=.*, now "),
    ],
)
def test_another_call_is_an_error_that_names_what_differs(changes, named):
    membership.note("a strategy", arguments())

    with pytest.raises(RuntimeError, match=f"joined the cluster before.* Received before: {named}"):
        membership.find(arguments(**changes))
