"""Flags that change the gradients before the update: slim's multipliers, then its clipping."""

import math
import re

import keras
from absl import flags

from kerasdist import callbacks

from .. import layer_scopes
from ..typed_flags import NOT_NEGATIVE, define_number
from ..usage_error import UsageError


def define_flags(values: flags.FlagValues) -> None:
    """Defines what `slim.learning.create_train_op` takes as arguments."""
    flags.DEFINE_string(
        "gradient_multipliers",
        None,
        "Comma-separated layer=factor, such as fc8=10: multiplies the gradients of the layer.",
        flag_values=values,
    )
    define_number(
        values,
        "clip_gradient_norm",
        0.0,
        "Largest norm of the gradient of each variable; 0 turns clipping off.",
        NOT_NEGATIVE,
    )


def build(values: flags.FlagValues, model: keras.Model) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that the flags ask for, in slim's order.

    Raises:
        UsageError: --gradient_multipliers is malformed, or names a layer that the model lacks.
    """
    found: list[keras.callbacks.Callback] = []
    if values.gradient_multipliers:
        names, factors = zip(*map(_pair, values.gradient_multipliers.split(",")), strict=True)
        patterns = layer_scopes.patterns("--gradient_multipliers", list(names), model)
        for name, pattern in zip(names, patterns, strict=True):
            if patterns.count(pattern) > 1:
                raise UsageError(f"--gradient_multipliers names {name!r} twice. Give one factor.")
        factors = dict(zip(patterns, factors, strict=True))
        found.append(callbacks.GradientMultipliers(factors))
    if values.clip_gradient_norm:
        found.append(callbacks.GradientClipping(norm=values.clip_gradient_norm))
    return found


def _pair(text: str) -> tuple[str, float]:
    match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*([^=\s]+)\s*", text)
    name, factor = match.groups() if match else ("", "")
    try:
        number = float(factor)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            f"--gradient_multipliers takes layer=factor, such as fc8=10. Received: {text!r}."
        )
    return name, number
