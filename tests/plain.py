"""The truth of the tests: Keras without any strategy.

check_as_plain(strategy, make_model, lambda model: model.fit(x, y, verbose=0).history)
"""

import contextlib

import keras
import numpy as np


def check_as_plain(strategy, make, run, *, tolerance: float = 1e-5) -> None:
    """Checks that a program gives under `strategy` what it gives without any.

    Args:
        strategy: A strategy of ours.
        make: Returns a compiled model; called in the scope.
        run: Called with the model, outside of the scope; returns numbers, nested as it likes.
        tolerance: Largest absolute difference of any number or weight; 0 asks for equal bits.
    """
    truth, outcome = (
        _outcome(contextlib.nullcontext(), make, run),
        _outcome(strategy.scope(), make, run),
    )
    keras.tree.assert_same_structure(outcome, truth)
    for ours, theirs in zip(keras.tree.flatten(outcome), keras.tree.flatten(truth), strict=True):
        # NaN equals NaN, and nothing else.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, equal_nan=True)


def _outcome(scope, make, run):
    keras.utils.set_random_seed(11)
    with scope:
        model = make()
    numbers = run(model)
    return numbers, model.get_weights()
