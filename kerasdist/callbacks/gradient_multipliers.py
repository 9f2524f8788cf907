"""Multipliers for the gradients of some variables."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from kerasdist import patterns
from kerasdist.callbacks import gradients
from kerasdist.support.checks import is_number
from kerasdist.training.hooks.update_callback import UpdateCallback
from kerasdist.training.replica import replicas


class GradientMultipliers(UpdateCallback):
    """Multiplies the gradients of some variables, for example to train a new head faster.

    It acts on the gradient of the global batch. The order of the callbacks is the order of the
    update: [GradientMultipliers(...), GradientClipping(...)] multiplies, then clips, as TF-Slim
    did.

    Args:
        multipliers: Factors by regular expressions that match the whole of `variable.path`. Keras'
            variables cannot be keys of a dict; a list of pairs (variable or expression, factor)
            does the same. A variable takes the first key that matches, and keeps its gradient if
            none does. A factor is a number, a `keras.optimizers.schedules.LearningRateSchedule`, or
            a function of the step (`optimizer.iterations`, int64 scalar) that returns a scalar. 0
            freezes a variable, though weight decay and momentum still act on it.

    Raises:
        TypeError, ValueError: `multipliers` is empty, or neither a dict nor pairs, or a key or
            factor has the wrong type.
        ValueError: When `fit` begins: a key matches no trainable variable. At the first step: a
            variable with a factor has no gradient.

    Example:
        ```python
        model.fit(dataset, callbacks=[GradientMultipliers({"predictions/.*": 10.0})])
        ```

    Source: `gradient_multipliers` of slim.learning.create_train_op, which takes names for keys.
    """

    def __init__(self, multipliers: Mapping[str, Any] | Sequence[tuple]):
        super().__init__()
        self.multipliers = _pairs_of(multipliers)
        for pattern, factor in self.multipliers:
            patterns.check_pattern("multipliers", pattern)
            _check_factor(pattern, factor)

    def prepare(self, model: keras.Model):
        for pattern, _ in self.multipliers:
            patterns.check_matches_something("multipliers", pattern, model.trainable_variables)

    def update(self, gradients_and_variables: list, apply: Callable):
        apply(
            [
                (self._multiply(gradient, variable), variable)
                for gradient, variable in gradients_and_variables
            ]
        )

    def describe(self):
        return f"multiply {', '.join(patterns.name_of(key) for key, _ in self.multipliers)}"

    def _multiply(self, gradient: Any, variable: keras.Variable):
        for pattern, factor in self.multipliers:
            if patterns.matches(pattern, variable):
                if gradient is None:
                    raise ValueError(
                        f"`multipliers` names '{variable.path}', which has no gradient: the loss "
                        "does not depend on it. Take it out of the map."
                    )
                return gradients.multiply(gradient, self._value_of(factor))
        return gradient

    def _value_of(self, factor: Any):
        return factor(replicas.num_updates()) if callable(factor) else factor


def _pairs_of(multipliers: Any) -> list[tuple]:
    if isinstance(multipliers, str) or not isinstance(multipliers, (Mapping, Sequence)):
        raise TypeError(
            "`multipliers` must be a dict of factors by path, or a list of pairs. Received: "
            f"{multipliers!r} of type {type(multipliers).__name__}."
        )
    if not multipliers:
        raise ValueError(
            f"`multipliers` is empty, so nothing would be multiplied. Received: {multipliers!r}."
        )
    pairs = list(multipliers.items() if isinstance(multipliers, Mapping) else multipliers)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                "`multipliers` must hold pairs (variable or expression, factor). Received: "
                f"{pair!r}."
            )
    return [(pattern, factor) for pattern, factor in pairs]


def _check_factor(pattern: Any, factor: Any):
    if callable(factor):  # Schedules as well.
        return
    if not is_number(factor):
        raise TypeError(
            "A factor of `multipliers` must be a number, a LearningRateSchedule or a function of "
            f"the step. Received: {{{pattern!r}: {factor!r}}}."
        )
    if not math.isfinite(factor):
        raise ValueError(
            f"A factor of `multipliers` must be finite. Received: {{{pattern!r}: {factor!r}}}."
        )
