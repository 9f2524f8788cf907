"""The table of the doctor says in words what is no number."""

import numpy as np
import pytest

from kerasdist import parity
from kerasdist.doctor import table
from kerasdist.parity import Outcome


@pytest.mark.parametrize(
    ("weight", "iterations", "cell"),
    [
        (0.5, 4, "DIFFERS: 5e-01"),
        (np.nan, 4, "DIFFERS: NaN or infinite"),
        (np.inf, 4, "DIFFERS: NaN or infinite"),
        (0.0, 3, "DIFFERS: lost or extra steps"),
    ],
)
def test_what_stock_keras_does_otherwise(weight, iterations, cell, monkeypatch, capsys):
    truth = Outcome(weights=[np.zeros(1)], history={}, iterations=4)
    stock = Outcome(weights=[np.array([weight])], history={}, iterations=iterations)
    outcomes = iter([truth, stock, truth])
    monkeypatch.setattr(parity, "train", lambda *_, **__: next(outcomes))

    assert table.examine(only="global_clipnorm") == 0

    [row] = (line for line in capsys.readouterr().out.splitlines() if "clipnorm" in line)
    assert row.split("  ")[-1] == "0e+00"
    assert cell in row
