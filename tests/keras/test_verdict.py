"""What counts as a difference from plain Keras, and as expected."""

import numpy as np
import pytest

from tests.keras.record import Record, as_plain, difference
from tests.keras.verdict import Expected, findings, problems, stale

EXPECTED = [Expected(reason="random", deployments=["two"], fails=["a::*"], differs=["b::*"])]


@pytest.mark.parametrize(
    ("value", "other", "seen"),
    [
        ({"loss": [1.0]}, {"loss": [1.0 + 1e-7]}, "call 1, fit['loss'][0]: 1.0000001, not 1.0"),
        ({"loss": [1.0]}, {"loss": [float("nan")]}, "by inf"),
        ({"loss": [1.0]}, {"loss": [np.float32(1)]}, "float32"),
        ({"loss": [1.0]}, {"loss": [1.0, 1.0]}, "fit['loss']"),
        ({"loss": [1.0]}, {"mae": [1.0]}, "mae"),
        (np.zeros(2), np.zeros((2, 1)), "float64(2, 1), not float64(2,)"),
        (None, {}, "{}, not"),
    ],
)
def test_numbers_types_and_shapes_make_a_difference(value, other, seen):
    calls, others = [("fit", as_plain(value))], [("fit", as_plain(other))]

    assert seen in difference(calls, others, tolerance=0)


def test_nothing_differs_within_the_tolerance_and_where_both_are_nan():
    calls = [("fit", as_plain([100.0, float("nan")]))]
    others = [("fit", as_plain([100.0005, float("nan")]))]

    assert difference(calls, others, tolerance=1e-5) == ""


def test_a_call_more_makes_a_difference():
    assert difference([], [("fit", {})], tolerance=0) == "1 calls, not 0"


@pytest.mark.parametrize("outcomes", [{"a::x": "failed"}, {}])
def test_a_test_that_fails_or_does_not_run_is_found(outcomes):
    found = findings("two", Record(outcomes=outcomes), Record(outcomes={"a::x": "passed"}))

    assert found["a::x"].kind == "fails"


def test_what_is_expected_is_no_problem():
    found = findings("two", Record(), Record(outcomes={"a::x": "passed"}))

    assert problems("two", found, ["a::x"], EXPECTED) == []
    assert problems("one", found, ["a::x"], EXPECTED) != []


def test_what_newly_holds_is_a_problem():
    assert "a::x holds now" in problems("two", {}, ["a::x"], EXPECTED)[0]


def test_a_failure_is_a_problem_where_a_difference_is_expected():
    found = findings("two", Record(), Record(outcomes={"b::x": "passed"}))

    assert "b::x fails" in problems("two", found, ["b::x"], EXPECTED)[0]


@pytest.mark.parametrize(("outcome", "num_problems"), [("passed", 0), ("failed", 1)])
@pytest.mark.parametrize("loss", [1.0, 1.1])
def test_what_may_differ_may_hold_and_may_not_fail(outcome, num_problems, loss):
    expected = [Expected(reason="threads", deployments=["one"], may_differ=["c::*"])]
    plain = Record(outcomes={"c::x": "passed"}, calls={"c::x": [("fit", {"loss": 1.0})]})
    ours = Record(outcomes={"c::x": outcome}, calls={"c::x": [("fit", {"loss": loss})]})

    found = findings("one", ours, plain)

    assert len(problems("one", found, ["c::x"], expected)) == num_problems


def test_an_entry_without_a_test_is_stale():
    assert stale(EXPECTED, ["a::x"]) == ["expected.toml: no test is called b::*"]
