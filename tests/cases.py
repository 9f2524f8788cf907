"""Cases of a parametrized test that `make test` leaves to `make test-all`.

They ask in one more way what the cases beside them ask:

    @pytest.mark.parametrize("steps", [4, 8, *exhaustive(1, 7, 20, 21)])
    @pytest.mark.parametrize("loss", named(LOSSES, exhaustive={"a sum"}))
    def test_something(loss, steps):
        ...
"""

import itertools

import pytest


def exhaustive(*cases):
    """Marks cases that ask what the cases beside them ask; a tuple is one of several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)
        for case in cases
    ]


def marked(names, *marks, exhaustive):
    """Returns names as cases with marks, of which some are exhaustive as well."""
    return [
        pytest.param(name, marks=[*marks, *[pytest.mark.exhaustive] * (name in exhaustive)])
        for name in names
    ]


def crossed(*values, kept):
    """Returns every combination of the values of several arguments; all but some are marked."""
    cases = list(itertools.product(*values))
    assert set(kept) < set(cases)
    return [
        pytest.param(*case, marks=[pytest.mark.exhaustive] * (case not in kept)) for case in cases
    ]


def named(cases: dict, *, exhaustive):
    """Returns cases that are called by their keys, some of them marked."""
    assert set(exhaustive) < set(cases)
    return [
        pytest.param(case, id=name, marks=[pytest.mark.exhaustive] * (name in exhaustive))
        for name, case in cases.items()
    ]
