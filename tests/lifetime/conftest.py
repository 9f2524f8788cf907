"""What the tests of silent tasks share."""

import pytest

from kerasdist.lifetime import heartbeat_loss
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def halted(monkeypatch):
    """The addresses that do not answer."""
    addresses = set()
    monkeypatch.setattr(
        heartbeat_loss,
        "find_problem",
        lambda to: heartbeat_loss.NO_ANSWER if to in addresses else "",
    )
    return addresses
