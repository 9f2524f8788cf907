"""Differences of numbers, also of those that are not finite."""

import numpy as np

from kerasdist.comparison import differences


def test_the_size_of_a_difference_has_no_sign():
    assert differences.absolute_differences(
        np.array([1.0, 2.0]), np.array([1.5, 1.0])
    ).tolist() == [0.5, 1.0]


def test_what_is_not_finite_equals_itself_alone():
    inf, nan = np.inf, np.nan
    truth, ours = (
        np.array([nan, inf, -inf, nan, 1, inf, inf]),
        np.array([nan, inf, -inf, 1, nan, -inf, 1]),
    )

    assert differences.absolute_differences(truth, ours).tolist() == [0, 0, 0, inf, inf, inf, inf]
