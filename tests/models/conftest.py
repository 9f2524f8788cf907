"""Fixtures of the application's tests."""

import pytest

from tests import strategies


@pytest.fixture(autouse=True, scope="session")
def logical_cpus():
    """Lets the first strategy make its logical CPUs before a test here starts TensorFlow."""
    strategies.get("one device")
