"""With XLA on, the rows of the parity table equal one device of Keras without it.

`jit_compile="auto"` switches it on, as on a machine with a GPU. What XLA cannot compile of a row on
several replicas runs without it.
"""

import functools

import pytest
import tensorflow as tf

from kerasdist.parity import CASES, difference, train
from tests import strategies, xla
from tests.cases import marked
from tests.strategies import run_on_workers

pytestmark = [
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),
    pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed, but will be ignored"),
]
# XLA cannot compile its gradient, on one device of plain Keras either.
REFUSED = "weights in loops"
NAMES = [case.name for case in CASES]
# What is compiled in another way than the rest.
KEPT = {"sample_weight with zeros", "masks", "mixed_float16", "Embedding (sparse gradients)"}
COMPILED = [name for name in NAMES if name != REFUSED]
ON_WORKERS = ["SGD with momentum", "Embedding (sparse gradients)", "steps_per_execution=10"]


@functools.cache
def truth(name):
    """Returns what one device gives, by Keras without a strategy and without XLA."""
    return train(CASES[NAMES.index(name)], is_reference=True)


@pytest.mark.parametrize("strategy", ["2 replicas"], indirect=True)
@pytest.mark.parametrize("name", marked(COMPILED, exhaustive=set(NAMES) - KEPT))
def test_equals_one_device_without_xla(name, strategy, monkeypatch):
    expected, case = truth(name), CASES[NAMES.index(name)]

    xla.turn_on_auto(monkeypatch)
    outcome = train(case, strategy)

    assert difference(outcome, expected) <= case.tolerance


@pytest.mark.exhaustive
def test_what_plain_keras_cannot_compile_is_an_error_here_as_well(monkeypatch):
    xla.turn_on_auto(monkeypatch)
    case = CASES[NAMES.index(REFUSED)]

    for strategy in (None, strategies.get("2 replicas")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="fixed tensor list size"):
            train(case, strategy, is_reference=strategy is None)


@pytest.mark.exhaustive
@pytest.mark.processes
def test_workers_equal_one_device_without_xla():
    for outcomes in run_on_workers(train_with_xla, "2 workers"):
        for name, outcome in zip(ON_WORKERS, outcomes, strict=True):
            assert difference(outcome, truth(name)) <= CASES[NAMES.index(name)].tolerance


def train_with_xla(strategy):
    with pytest.MonkeyPatch.context() as patch:
        xla.turn_on_auto(patch)
        return [train(CASES[NAMES.index(name)], strategy) for name in ON_WORKERS]
