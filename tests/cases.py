"""Cases of a parametrized test that `make test` leaves to `make test-all`.

@pytest.mark.parametrize("steps", [4, 8, *exhaustive(1, 7, 20, 21)])
def test_something(steps):
    ...
"""

import pytest


def exhaustive(*cases):
    """Marks cases that ask what the cases beside them ask; a tuple is one of several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive)
        for case in cases
    ]
