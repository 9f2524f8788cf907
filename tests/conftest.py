"""Fixtures of all tests."""

import pytest

from tests import strategies


@pytest.fixture
def strategy(request):
    """The strategy of the deployment that `tests.strategies.each_strategy` names."""
    return strategies.get(request.param)
