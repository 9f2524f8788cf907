"""The same weights: every case of the parity table, on every deployment."""

import functools
import traceback

import pytest

from kerasdist.parity import CASES, difference, train
from tests.strategies import each_strategy, each_worker_deployment, run_on_workers

CASE_NAMES = [case.name for case in CASES]


@functools.cache
def truth(index: int):
    """Returns what one device gives: Keras alone, without a strategy."""
    return train(CASES[index], is_reference=True)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.filterwarnings("ignore:.*jit_compile=True.*replicas:UserWarning")
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@each_strategy
@pytest.mark.parametrize("index", range(len(CASES)), ids=CASE_NAMES)
def test_equals_one_device(index, strategy):
    case = CASES[index]

    outcome = train(case, strategy)

    assert difference(outcome, truth(index)) <= case.tolerance


@functools.cache
def outcomes_on(workers: str) -> list[list]:
    """Returns the outcome of every case, or its error, on each worker of a deployment."""
    return run_on_workers(train_all, workers, timeout_secs=600)


def train_all(strategy) -> list:
    """Trains all cases in one process: starting TensorFlow takes longer than a case."""
    return [_outcome_or_error(case, strategy) for case in CASES]


def _outcome_or_error(case, strategy):
    try:
        return train(case, strategy)
    except Exception:  # The other cases are to be seen as well.
        return traceback.format_exc()


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@each_worker_deployment
@pytest.mark.parametrize("index", range(len(CASES)), ids=CASE_NAMES)
def test_equals_one_device_on_every_worker(index, workers):
    for outcome in [outcomes[index] for outcomes in outcomes_on(workers)]:
        assert not isinstance(outcome, str), outcome
        assert difference(outcome, truth(index)) <= CASES[index].tolerance


def test_names_are_titles_of_different_rows():
    assert len(set(CASE_NAMES)) == len(CASES)
