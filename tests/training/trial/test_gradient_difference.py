"""Where two gradients differ by more than rounding, and what is said of it.

That rehearsed steps give such gradients is in test_rehearsal.py.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from kerasdist.training.trial import gradient_difference
from kerasdist.training.trial.gradient_difference import OWN_SUM

WHOLE = {"kernel": [[1.0, 2.0]], "bias": [0.5]}
ROUNDED = {"kernel": [[1.0, 2.00001]], "bias": [0.5]}


def find(
    divided,
    *,
    rounded=ROUNDED,
    tolerance=1e-3,
    num_replicas=2,
    asks_for_number=False,
    before=(None, None),
):
    """Returns what is found with one update, and one sum of the program's own before it or none."""
    of_whole, of_divided = before

    def updates(*gradients, own_sum):
        return [
            [(list(each), list(each.values())) for each in (own_sum, update) if each is not None]
            for update in gradients
        ]

    return gradient_difference.find(
        SimpleNamespace(
            updates=updates(WHOLE, rounded, own_sum=of_whole), asks_for_number=asks_for_number
        ),
        SimpleNamespace(updates=updates(divided, own_sum=of_divided)),
        tolerance=tolerance,
        num_replicas=num_replicas,
    )


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
    text = gradient_difference.describe(found, 2)
    assert ("about 2 times as large, so the loss seems to be a sum" in text) is is_sum
    assert ("Only one of the two is finite" in text) is math.isnan(scale)
    assert ("differs by NaN" in text) is math.isnan(scale)


def test_what_the_program_asks_for_is_told():
    other = find({**WHOLE, "bias": [0.6]}, asks_for_number=True)
    halved = find({"kernel": [[0.5, 1.0]], "bias": [0.25]}, asks_for_number=True)

    assert "Leave out the division" in gradient_difference.describe(other, 2)
    assert "2 times as large. The program asks" in gradient_difference.describe(halved, 2)
    assert "differs by 17% (of 'bias')" in gradient_difference.describe(other, 2)


def test_a_sum_of_the_programs_own_is_the_cause_of_what_differs_after_it():
    own_sum = {OWN_SUM: [1.0]}

    assert find({**WHOLE, "bias": [0.9]}, before=(own_sum, own_sum)).variable == "bias"
    found = find({**WHOLE, "bias": [5.0]}, before=(own_sum, {OWN_SUM: [2.0]}))

    assert found.variable == OWN_SUM
    text = gradient_difference.describe(found, 2)
    assert "differs by 50% (of what an `all_reduce` returns)" in text
    assert text.endswith("on each of 2 replicas. Leave out the `all_reduce` of it.")


def test_a_sum_that_one_side_alone_has_is_left_out():
    assert find(WHOLE, before=({OWN_SUM: [1.0]}, None)) is None
    assert find(WHOLE, before=(None, {OWN_SUM: [1.0]})) is None


def test_a_small_difference_is_told_with_its_digits():
    other = find({**WHOLE, "kernel": [[1.0, 2.00345]]}, tolerance=1e-5)

    assert "differs by 0.15% (of 'kernel')" in gradient_difference.describe(other, 2)


def test_the_difference_of_one_variable_is_that_of_all_updates():
    whole = SimpleNamespace(updates=[[(["a", "b"], [[3.0], [1.0]]), (["a"], [[[5.0]]])]])
    shared = SimpleNamespace(updates=[[(["a", "b"], [[1.0], [9.0]]), (["a"], [[[4.0]]])]])

    assert gradient_difference.of_variable(whole, shared, "a").tolist() == [2.0, 1.0]
    assert gradient_difference.of_variable(whole, shared, "c").tolist() == []


def test_a_small_gradient_counts_as_a_part_of_those_of_its_update():
    large, small = (["large"], [[1e6]]), (["small"], [[1.0]])
    whole = SimpleNamespace(updates=[[large, small]] * 2, asks_for_number=False)
    shared = SimpleNamespace(updates=[[large, (["small"], [[1.1]])]])

    found = gradient_difference.find(whole, shared, tolerance=1e-3, num_replicas=2)

    assert found is not None and found.variable == "small"
