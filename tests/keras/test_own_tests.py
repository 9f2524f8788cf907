"""Keras' own tests under our deployments: the quick part of what `make test-keras` runs."""

import pytest

from tests.keras.deployments import OURS, PLAIN, QUICK, run
from tests.keras.verdict import findings, problems, read_expected


@pytest.fixture(scope="module")
def plain():
    """The truth: what the tests do where nobody has imported kerasdist."""
    return run(PLAIN, QUICK)


@pytest.mark.timeout(600)  # Hundreds of tests each.
@pytest.mark.parametrize("deployment", [PLAIN, *OURS])
def test_keras_own_tests_do_and_return_what_they_do_in_plain_keras(deployment, plain):
    record = plain if deployment == PLAIN else run(deployment, QUICK)

    found = findings(deployment, record, plain)
    assert problems(deployment, found, list(plain.outcomes), read_expected()) == []
