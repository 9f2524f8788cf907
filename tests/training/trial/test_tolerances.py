"""What is rounding, and differences of numbers that are not finite."""

import numpy as np
import pytest

from kerasdist.training.trial import tolerances


def test_the_size_of_a_difference_has_no_sign():
    assert tolerances.absolute_differences(np.array([1.0, 2.0]), np.array([1.5, 1.0])).tolist() == [
        0.5,
        1.0,
    ]


def test_what_is_not_finite_equals_itself_alone():
    inf, nan = np.inf, np.nan
    truth, ours = (
        np.array([nan, inf, -inf, nan, 1, inf, inf]),
        np.array([nan, inf, -inf, 1, nan, -inf, 1]),
    )

    assert tolerances.absolute_differences(truth, ours).tolist() == [0, 0, 0, inf, inf, inf, inf]


@pytest.mark.parametrize(
    ("difference", "given", "expected"),
    [
        (1e-4, {}, True),
        (1e-3, {}, False),
        (1e-3, {"scale": 10.0}, True),
        (1e-3, {"of_twin": 3e-4}, True),
        (1e-3, {"of_twin": 2e-4}, False),
        (1e-3, {"near_zero": 1e-2}, True),
        (np.nan, {"of_twin": np.nan}, False),
        (np.inf, {}, False),
    ],
)
def test_a_tolerance_the_twin_or_zero_explain_a_difference(difference, given, expected):
    assert tolerances.is_rounding(difference, 1e-4, **given) is expected


@pytest.mark.parametrize(
    ("perturbed", "expected"),
    [
        ([[1.01, -2.0], [1.0, -1.95]], True),
        ([[1.01, -2.0], [1.0, 1.95]], False),
        ([[0.5, -1.0]], False),
        ([[np.nan, -2.0]], False),
    ],
)
def test_what_is_nearly_the_same_is_computed(perturbed, expected):
    assert tolerances.is_computed(np.array([1.0, -2.0]), list(map(np.array, perturbed))) is expected
