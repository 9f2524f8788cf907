"""What workers compare before they train, and what is said where they differ."""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from kerasdist.cluster import Cluster, Task
from kerasdist.training import agreement, peers


@pytest.fixture
def gather(monkeypatch):
    """Return a function that checks the facts of two workers at once; gives what each raised."""
    barrier, rows = threading.Barrier(2, timeout=20), {}

    def sum_over(strategy, numbers):
        rows[peers.index_of(strategy)] = numbers
        barrier.wait()
        total = rows[0] + rows[1]
        barrier.wait()
        return total

    monkeypatch.setattr(peers, "sum_over", sum_over)

    def check(index, facts):
        cluster = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", index))
        try:
            agreement._check(SimpleNamespace(cluster=cluster), facts)
        except ValueError as error:
            return str(error)
        return ""

    def gathered(first, second):
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(check, (0, 1), (first, second)))

    return gathered


def test_what_is_equal_is_not_spoken_of(gather):
    assert gather({"epochs": "2", "ü": "∞"}, {"ü": "∞", "epochs": "2"}) == ["", ""]


def test_both_sides_are_named_on_all_workers(gather):
    first, second = gather({"epochs": "2", "weight 1": "a"}, {"epochs": "30", "weight 1": "a"})

    assert first == second
    assert "train different things: epochs is 2 on worker 0, 30 on worker 1. Run the" in first
    assert "weight 1" not in first


def test_what_one_of_them_lacks_is_nothing_and_the_first_are_shown(gather):
    first, _ = gather({str(number): "1" for number in range(9)}, {})

    assert "0 is 1 on worker 0, nothing on worker 1; 1 is 1 on" in first
    assert "3 is 1 on worker 0, nothing on worker 1; ...." in first


def test_facts_hold_numbers_and_names_but_nothing_with_an_address():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse", steps_per_execution=3)
    arguments = inspect.signature(model.fit).bind_partial(np.ones(3), epochs=4)

    facts = agreement._facts(model, [], arguments)

    assert facts["epochs"] == "4"
    assert facts["steps_per_execution"] == "3"
    assert facts["optimizer"] == "SGD"
    assert facts["optimizer's momentum"] == "0.5"
    assert facts["weight 0"] == "float32 (3, 2), not trained"
    assert "x" not in facts
    assert not agreement._is_plain([1, {"a": object()}])


@pytest.mark.parametrize("error", [NotImplementedError, AttributeError("lr"), KeyError("lr")])
def test_an_optimizer_without_settings_is_compared_by_its_class(error):
    class Own(keras.optimizers.Optimizer):
        def get_config(self):
            raise error

    assert agreement._settings(Own(0.1)) == {"optimizer": "Own"}
    assert agreement._settings(None) == {"optimizer": "NoneType"}
