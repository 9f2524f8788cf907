"""Trains a case and compares what comes out with what one device gives."""

import contextlib
import dataclasses
import io

import keras
import numpy as np
import tensorflow as tf

from kerasdist.parity.cases import Case
from kerasdist.parity.data import ODD, Data
from kerasdist.training.trial.tolerances import absolute_differences


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of training a case.

    Attributes:
        weights: Arrays by the position of the variable in `model.weights`.
        history: Lists by the names of the logs.
        iterations: Optimizer steps.
    """

    weights: list[np.ndarray]
    history: dict[str, list]
    iterations: int


def train(
    case: Case,
    strategy: tf.distribute.Strategy | None = None,
    *,
    is_reference: bool = False,
    num_examples: int = ODD,
) -> Outcome:
    """Trains `case` from its fixed seed, in the scope of `strategy` or (None) without any.

    Args:
        case: One of `CASES`.
        strategy: A strategy of ours or of TensorFlow's.
        is_reference: Whether to use the data of the case's `reference`.
        num_examples: Of the data, unless the case is about their number.
    """
    keras.utils.set_random_seed(7)
    data = Data(num_examples=num_examples, strategy=strategy)
    fit = case.reference if is_reference and case.reference else case.fit
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = case.model()
    with strategy.scope() if strategy and case.fits_in_scope else contextlib.nullcontext():
        history = _history(case, model, data, fit(data))
    return Outcome(
        weights=[np.asarray(variable.numpy(), "float32") for variable in model.weights],
        history=history,
        iterations=int(tf.convert_to_tensor(model.optimizer.iterations)),
    )


def _history(case: Case, model: keras.Model, data: Data, arguments: dict):
    # Keras' progress bars would appear between the lines of the table.
    with contextlib.redirect_stdout(io.StringIO()):
        if case.train:
            return case.train(model, data, arguments)
        return model.fit(**arguments).history


def difference(outcome: Outcome, truth: Outcome) -> float:
    """Returns the largest absolute difference of any weight or log.

    It is infinite if steps were lost, or if only one of the two is NaN or infinite.

    Args:
        outcome: What a deployment gave.
        truth: What one device gave.
    """
    if not has_same_steps(outcome, truth):
        return float("inf")
    pairs = [
        *zip(outcome.weights, truth.weights, strict=True),
        *((outcome.history[name], truth.history[name]) for name in truth.history),
    ]
    return max(_largest(np.asarray(ours), np.asarray(theirs)) for ours, theirs in pairs)


def has_same_steps(outcome: Outcome, truth: Outcome) -> bool:
    """Returns whether no step or log of an epoch is lost or extra, so that numbers compare."""
    return outcome.iterations == truth.iterations and _lengths(outcome) == _lengths(truth)


def _lengths(outcome: Outcome) -> dict[str, int]:
    return {name: len(values) for name, values in outcome.history.items()}


def _largest(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(absolute_differences(theirs, ours), initial=0.0))
