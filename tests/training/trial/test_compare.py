"""What differs from one device by more than rounding, and what is said of gradients.

That steps give such gradients is in test_fit.py.
"""

import math

import numpy as np
import pytest

from kerasdist.training.trial import compare, words
from kerasdist.training.trial.outcome import CUSTOM_SUM, Outcome

WHOLE = {"kernel": [[1.0, 2.0]], "bias": [0.5]}
ROUNDED = {"kernel": [[1.0, 2.00001]], "bias": [0.5]}


def find(divided, *, rounded=ROUNDED, tolerance=1e-3, before=(None, None)):
    """Returns what is found with one update, and one sum of the program's own before it or none."""
    of_whole, of_divided = before

    def outcome(update, custom_sum):
        given = [each for each in (custom_sum, update) if each is not None]
        return Outcome(updates=[(list(each), list(each.values())) for each in given])

    return compare.gradients(
        outcome(WHOLE, of_whole),
        outcome(rounded, of_whole),
        outcome(divided, of_divided),
        tolerance=tolerance,
        num_replicas=2,
    )


def described(found, *, asks_for_number=False):
    assert found is not None
    return words.of_gradient(found, 2, asks_for_number=asks_for_number)


def test_what_rounding_explains_is_no_difference():
    other = {"kernel": [[1.0, 2.2]], "bias": [0.5]}

    assert find(WHOLE) is find(ROUNDED) is None
    assert find(other).variable == "kernel"
    assert find(other, rounded={"kernel": [[1.0, 1.9]], "bias": [0.5]}) is None


def test_a_gradient_that_is_there_on_one_side_alone_is_left_out():
    assert find({**WHOLE, "bias": None}) is None
    assert find({"kernel": None, "bias": None}) is None


def test_a_small_gradient_counts_as_a_part_of_all():
    assert find({**WHOLE, "bias": [0.5001]}) is None  # 2e-4 of itself.
    assert find({"kernel": [[1.0, 2.0]], "bias": [0.51]}).variable == "bias"


@pytest.mark.parametrize(
    ("scale", "is_sum"),
    [(0.5, True), (0.45, True), (1 / 3, False), (2.0, False), (math.nan, False)],
)
def test_a_sum_is_as_many_times_as_large_as_there_are_replicas(scale, is_sum):
    found = find({name: np.multiply(scale, each) for name, each in WHOLE.items()})

    assert found.is_sum is is_sum
    text = described(found)
    assert ("about 2 times as large, so the loss seems to be a sum" in text) is is_sum
    assert ("Only one of the two is finite" in text) is math.isnan(scale)
    assert ("differs by NaN" in text) is math.isnan(scale)


def test_what_the_program_asks_for_is_told():
    other = find({**WHOLE, "bias": [0.6]})
    halved = find({"kernel": [[0.5, 1.0]], "bias": [0.25]})

    assert "Leave out the division" in described(other, asks_for_number=True)
    assert "2 times as large. The program asks" in described(halved, asks_for_number=True)
    assert "differs by 17% (of 'bias')" in described(other)


def test_a_sum_of_the_programs_own_is_the_cause_of_what_differs_after_it():
    custom_sum = {CUSTOM_SUM: [1.0]}

    assert find({**WHOLE, "bias": [0.9]}, before=(custom_sum, custom_sum)).variable == "bias"
    found = find({**WHOLE, "bias": [5.0]}, before=(custom_sum, {CUSTOM_SUM: [2.0]}))

    assert found.variable == CUSTOM_SUM
    text = described(found)
    assert "differs by 50% (of what an `all_reduce` returns)" in text
    assert text.endswith("on each of 2 replicas. Leave out the `all_reduce` of it.")


def test_a_sum_that_one_side_alone_has_is_left_out():
    assert find(WHOLE, before=({CUSTOM_SUM: [1.0]}, None)) is None
    assert find(WHOLE, before=(None, {CUSTOM_SUM: [1.0]})) is None


def test_a_small_difference_is_told_with_its_digits():
    other = find({**WHOLE, "kernel": [[1.0, 2.00345]]}, tolerance=1e-5)

    assert "differs by 0.15% (of 'kernel')" in described(other)


def test_the_difference_of_one_variable_is_that_of_all_updates():
    truth = Outcome(updates=[(["a", "b"], [[3.0], [1.0]]), (["a"], [[[5.0]]])])
    ours = Outcome(updates=[(["a", "b"], [[1.0], [9.0]]), (["a"], [[[4.0]]])])

    assert compare.gradient_of(truth, ours, "a").tolist() == [2.0, 1.0]
    assert compare.gradient_of(truth, ours, "c").tolist() == []


def test_a_small_gradient_counts_as_a_part_of_those_of_its_update():
    large, small = (["large"], [[1e6]]), (["small"], [[1.0]])
    truth = Outcome(updates=[large, small])
    ours = Outcome(updates=[large, (["small"], [[1.1]])])

    found = compare.gradients(truth, truth, ours, tolerance=1e-3, num_replicas=2)

    assert found is not None and found.variable == "small"


NAN = math.nan


@pytest.mark.parametrize(
    ("truth", "twin", "ours", "expected"),
    [
        ([100.0, 1.0], [100.0, 1.0], [100.0, 1.001], False),  # Of the largest number.
        ([100.0, 1.0], [100.0, 1.0], [100.0, 1.01], True),
        ([1.0], [1.1], [1.3], False),
        ([1.0], [1.1], [1.5], True),
        ([1.0], [1.0, 1.0], [2.0], False),  # Rounding decides how many there are.
        ([0.0], [0.0], [9e-7], False),
        ([NAN], [NAN], [1.0], False),
        ([1.0], [1.0], [NAN], True),
        ([], [], [], False),
    ],
)
def test_a_result_differs_by_more_than_rounding(truth, twin, ours, expected):
    assert compare.results_differ(*map(np.array, (truth, twin, ours)), 1.5e-5) is expected


@pytest.mark.parametrize(
    ("truth", "twin", "ours", "expected"),
    [
        (["a", "b"], ["a", "c"], ["a", "d"], False),  # Rounding decides.
        (["a", "b"], ["a", "b"], ["a", "d"], True),
        ([1.0, NAN], [1.0, NAN], [1.0, 5.0], False),
        ([1.0, NAN], [1.0, NAN], [2.0, NAN], True),
        ([1.0, NAN], [1.0, NAN], [NAN, NAN], True),
        ([1.0], [1.0, 2.0], [5.0], False),
    ],
)
def test_an_output_may_be_text_or_have_gaps(truth, twin, ours, expected):
    assert compare.outputs_differ(*map(np.array, (truth, twin, ours)), 1e-5) is expected


def test_what_is_nan_everywhere_deviates_from_nothing():
    assert [compare.deviates(each) for each in (1e-5, 1e-4, NAN)] == [False, True, False]
