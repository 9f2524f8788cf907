"""Keras' own tests under our deployments: the quick part of what `make test-keras` runs."""

import pytest

from tests.keras.deployments import PLAIN, QUICK, run_all
from tests.keras.verdict import findings, problems, read_expected

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def records():
    """What the tests do under each deployment, and (the truth) in plain Keras."""
    return run_all(QUICK)


@pytest.mark.timeout(900)  # The first one waits for all runs.
@pytest.mark.parametrize("deployment", [PLAIN, *QUICK.ours])
def test_keras_own_tests_do_and_return_what_they_do_in_plain_keras(deployment, records):
    plain = records[PLAIN]

    found = findings(deployment, records[deployment], plain)

    assert problems(deployment, found, list(plain.outcomes), read_expected()) == []
