"""The same weights: every case of the parity table, on every deployment."""

import functools

import pytest

from kerasdist.parity import CASES, difference, train
from tests.strategies import each_strategy

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


def test_names_are_titles_of_different_rows():
    assert len(set(CASE_NAMES)) == len(CASES)
