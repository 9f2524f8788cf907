"""What counts as a difference between two results of a program."""

import numpy as np
import pytest

from tests.programs.comparison import differences

TRUTH = {"history": {"loss": [0.5, 0.25]}, "weights": [np.ones(2, "float32")], "names": ["a"]}


def changed(key, value):
    return TRUTH | {key: value}


def test_the_same_results_do_not_differ():
    assert differences(TRUTH, TRUTH, tolerance=0) == []


@pytest.mark.parametrize(
    ("results", "line"),
    [
        (changed("history", {"loss": [0.5, float("nan")]}), "/history/loss/1: off by inf"),
        (changed("history", {"loss": [0.5]}), "/history/loss: length 1 instead of 2"),
        (changed("history", {"mse": [0.5, 0.25]}), "/history: keys ['mse'] instead of ['loss']"),
        (changed("history", {"loss": [np.float32(0.5), 0.25]}), "float32 instead of float"),
        (changed("weights", [np.ones(3, "float32")]), "float32(3,) instead of float32(2,)"),
        (changed("weights", [np.ones(2, "float64")]), "float64(2,) instead of float32(2,)"),
        (changed("weights", [np.array([1, 1.0001], "float32")]), "/weights/0: off by 0.0001"),
        (changed("names", ["b"]), "/names/0: 'b' instead of 'a'"),
    ],
)
def test_says_what_differs_and_where(results, line):
    found, *_ = differences(results, TRUTH, tolerance=1e-5)

    assert line in found


def test_large_numbers_may_differ_by_as_much_of_themselves():
    assert differences({"loss": 1000.005}, {"loss": 1000.0}, tolerance=1e-5) == []
    assert differences({"loss": 1.00005}, {"loss": 1.0}, tolerance=1e-5)
    assert differences({"loss": np.nextafter(1.0, 2.0)}, {"loss": 1.0}, tolerance=0)
