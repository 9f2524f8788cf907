"""A program that never enters the strategy's scope is told so; one that trains outside is not.

Whether code enters it is read from the code itself, so that no code of this file does.
"""

import warnings
import weakref

import keras
import numpy as np
import pytest

from kerasdist.support import memory
from tests import strategies
from tests.strategies import on_workers

SETUP = """
import keras
import numpy as np
import kerasdist

X = np.ones((4, 1), "float32")

def make():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

local = kerasdist.Cluster.local()
config = kerasdist.DeploymentConfig(num_clones=2, clone_on_cpu=True)
strategy = kerasdist.make_strategy(config, cluster=local)
"""
FORGOTTEN = """
make().fit(X, X, verbose=0)
make().fit(X, X, verbose=0)
"""
TEACHER = """
def train():
    with strategy.scope():
        make().fit(X, X, verbose=0)

make().fit(X, X, verbose=0)
train()
"""
SECOND = """
with strategy.scope():
    make()
make().fit(X, X, verbose=0)
"""
ON_ONE_DEVICE = """
strategy = kerasdist.make_strategy(kerasdist.DeploymentConfig(), cluster=local)
make().fit(X, X, verbose=0)
"""


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(memory, "_of_parts", weakref.WeakKeyDictionary())
    monkeypatch.setattr(memory.PROCESS, "latest_strategy", None)


def run(program: str) -> list[str]:
    """Returns the warnings of a program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(SETUP + program, "program.py", "exec"), {"__name__": "__main__"})
    return [str(each.message) for each in caught if each.filename == "program.py"]


def test_a_program_that_enters_no_scope_is_warned_once():
    (warning,) = run(FORGOTTEN)

    assert "trains on one device: nothing was created in the scope of" in warning
    assert "Create and compile the model inside `with strategy.scope():`" in warning


@pytest.mark.parametrize("program", [TEACHER, SECOND, ON_ONE_DEVICE])
def test_one_that_trains_a_model_outside_on_purpose_is_not(program):
    assert run(program) == []


def train_outside(strategy) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    return [str(each.message) for each in caught if "nothing was created" in str(each.message)]


@on_workers
def test_each_of_several_workers_is_warned(workers):
    for found in strategies.run_on_workers(train_outside, workers):
        assert len(found) == 1
        assert "trains in this process by itself" in found[0]
