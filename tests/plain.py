"""The truth of the tests: Keras without any strategy.

check_as_plain(strategy, make_model, lambda model: model.fit(x, y, verbose=0).history)
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tests import strategies


def check_as_plain(strategy, make, run, *, tolerance: float = 1e-5) -> None:
    """Checks that a program gives under `strategy` what it gives without any.

    Args:
        strategy: A strategy of ours.
        make: Returns a compiled model; called in the scope.
        run: Called with the model, outside of the scope; returns numbers, nested as it likes.
        tolerance: Largest absolute difference of any number or weight; 0 asks for equal bits.
    """
    truth = outcome_of(contextlib.nullcontext(), make, run)
    outcome = outcome_of(strategy.scope(), make, run)
    check_numbers(outcome, truth, tolerance=tolerance)


def check_numbers(outcome, truth, *, tolerance: float = 1e-5) -> None:
    """Checks that numbers, nested as they like, are those of the truth."""
    keras.tree.assert_same_structure(outcome, truth)
    for ours, theirs in zip(keras.tree.flatten(outcome), keras.tree.flatten(truth), strict=True):
        # NaN equals NaN, and nothing else.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance, equal_nan=True)


def check_workers(workers: str, fit) -> None:
    """Checks that `fit(strategy)` gives on every worker of a deployment what it gives here."""
    truth = fit(tf.distribute.get_strategy())
    for outcome in strategies.run_on_workers(fit, workers):
        check_numbers(outcome, truth)


def outcome_of(scope, make, run):
    """Returns the numbers of a program, and the weights; see `check_as_plain`."""
    keras.utils.set_random_seed(11)
    with scope:
        model = make()
    numbers = run(model)
    return numbers, model.get_weights()
