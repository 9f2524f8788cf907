"""Fixtures of all tests."""

from pathlib import Path

import pytest

from tests import strategies


@pytest.fixture(autouse=True, scope="session")
def logical_cpus(request):
    """Lets the first strategy make its logical CPUs before any test starts TensorFlow.

    The tests beside this file do so themselves where they need it, so that one of them alone is
    quick.
    """
    if any(item.path.parent != Path(__file__).parent for item in request.session.items):
        strategies.get("one device")


@pytest.fixture
def strategy(request):
    """The strategy of the deployment that `tests.strategies.each_strategy` names."""
    return strategies.get(request.param)
