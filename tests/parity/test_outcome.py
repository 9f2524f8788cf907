"""The comparison notices what it is there to notice."""

import dataclasses

import numpy as np
import pytest

from kerasdist.parity import Outcome, difference, has_same_steps

TRUTH = Outcome(weights=[np.zeros(3)], history={"loss": [0.5, 0.25]}, iterations=4)


def test_equal_outcomes_do_not_differ():
    assert difference(TRUTH, TRUTH) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"weights": [np.array([0, 0, 0.1])]}, 0.1),
        ({"history": {"loss": [0.5, 0.5]}}, 0.25),
        ({"history": {"loss": [0.5, 0.25], "mae": [0, 0]}}, np.inf),
        ({"iterations": 3}, np.inf),
        ({"weights": [np.array([0, np.nan, 0])]}, np.inf),
        ({"history": {"loss": [0.5, np.nan]}}, np.inf),
        ({"history": {"loss": [0.5]}}, np.inf),
    ],
)
def test_a_changed_weight_log_or_count_is_a_difference(change, expected):
    assert difference(dataclasses.replace(TRUTH, **change), TRUTH) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"weights": [np.full(3, np.nan)]}, True),
        ({"iterations": 3}, False),
        ({"history": {"loss": [0.5]}}, False),
        ({"history": {"loss": [0.5, 0.25], "mae": [0, 0]}}, False),
    ],
)
def test_lost_and_extra_steps_are_told_from_other_numbers(change, expected):
    assert has_same_steps(dataclasses.replace(TRUTH, **change), TRUTH) is expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_equals_itself(value):
    outcome = dataclasses.replace(TRUTH, history={"loss": [value, 0.25]})

    assert difference(outcome, outcome) == 0
