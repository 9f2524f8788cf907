"""The simulation of synchronous workers of which some are late: benchmarks/stragglers.py."""

import math

import numpy as np
import pytest

from benchmarks import stragglers


def mean_of_largest(num_workers, sigma):
    """Returns E[max] of lognormal numbers of mean 1, as the integral of 1 - F^n."""
    x = np.linspace(1e-6, 5, 5001)
    z = (np.log(x) + sigma**2 / 2) / sigma
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z])
    return np.sum(1 - below**num_workers) * (x[1] - x[0])


@pytest.mark.parametrize("sigma", stragglers.SIGMAS)
@pytest.mark.parametrize("num_workers", [1, 2, 10, 100])
def test_without_backups_an_update_takes_as_long_as_the_slowest(num_workers, sigma):
    expected = mean_of_largest(num_workers, sigma)

    assert stragglers.goes_on(num_workers, 0, sigma, 2000) == pytest.approx(expected, rel=0.02)
    assert stragglers.afresh(num_workers, sigma, 2000)[0] == pytest.approx(expected, rel=0.02)


def test_of_a_thousand_workers_four_percent_of_backups_take_the_update_from_188_to_140():
    assert stragglers.afresh(1000, 0.2, 1000)[0] == pytest.approx(1.88, abs=0.01)
    assert stragglers.goes_on(1000, 40, 0.2, 1000) == pytest.approx(1.40, abs=0.01)
    assert stragglers.afresh(1000, 0.2, 1000)[40] == pytest.approx(1.39, abs=0.01)


def test_whoever_is_always_late_goes_on_with_what_is_stale(monkeypatch):
    # The third worker takes 2.5 updates of the others for a batch, and its batches are stale.
    monkeypatch.setattr(stragglers, "_times", lambda rng, sigma, shape: np.array([1, 1, 2.5]))

    assert stragglers.goes_on(3, 1, 0.2, 100) == pytest.approx(1)
    assert stragglers.goes_on(3, 0, 0.2, 100) == pytest.approx(2.5)


def test_who_was_late_is_late_for_the_next_update_too(monkeypatch):
    times = iter([[1, 1.5], [2, 1], [1, 1]] + [[1, 1]] * 100)
    monkeypatch.setattr(stragglers, "_times", lambda rng, sigma, shape: np.array(next(times)))

    # Of two workers the first of one: 1; then 2.5, which the second needs after its stale batch.
    monkeypatch.setattr(stragglers, "_NUM_BEFORE", 0)
    assert stragglers.goes_on(2, 1, 0.2, 2) == pytest.approx(1.25)


def test_backups_pay_from_where_the_slowest_is_late_enough():
    few, many = (stragglers.best_choice(number, 0.2, 300) for number in (4, 100))

    assert few.num_backups == 0
    assert 4 <= many.num_backups <= 12
