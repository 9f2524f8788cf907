"""Clipping of the aggregated gradient."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from kerasdist.callbacks import gradients
from kerasdist.support.checks import check_one_of, check_positive
from kerasdist.support.users_line import warn
from kerasdist.training.context import traits
from kerasdist.training.hooks.update_callback import UpdateCallback


class GradientClipping(UpdateCallback):
    """Clips the gradient of the global batch: once, after the replicas' gradients were summed.

    The order of the callbacks is the order of the update: [GradientMultipliers(...),
    GradientClipping(...)] multiplies, then clips, as TF-Slim did. Give exactly one argument.

    Args:
        norm: Largest L2 norm of each variable's gradient (slim.learning.clip_gradient_norms, Keras'
            `clipnorm`). Rows of an embedding that are looked up several times are added up before.
        global_norm: Largest L2 norm of all gradients together; they keep their direction (Keras'
            `global_clipnorm`).
        value: Largest absolute value of any element (Keras' `clipvalue`).

    Raises:
        TypeError, ValueError: None or several are given, or one is not a positive number.
        FloatingPointError: In `fit`: a gradient is not finite, so that clipping it would make the
            weights NaN. No weight is changed by that step. XLA drops this check: with
            `jit_compile=True` there is a warning instead when `fit` begins.

    Example:
        ```python
        model.fit(dataset, callbacks=[GradientClipping(global_norm=1.0)])
        ```
    """

    def __init__(
        self,
        *,
        norm: float | np.floating | None = None,
        global_norm: float | np.floating | None = None,
        value: float | np.floating | None = None,
    ):
        super().__init__()
        limits = {"norm": norm, "global_norm": global_norm, "value": value}
        check_one_of(norm=norm, global_norm=global_norm, value=value)
        self.mode, self.limit = next(
            (mode, limit) for mode, limit in limits.items() if limit is not None
        )
        check_positive(self.mode, self.limit, finite=True)

    def prepare(self, model: keras.Model):
        if traits.is_compiled_by_xla(model):
            warn(
                "`jit_compile=True`: XLA drops GradientClipping's check that gradients are finite. "
                "Add keras.callbacks.TerminateOnNaN() to stop if they are not."
            )

    def update(self, gradients_and_variables: list, apply: Callable):
        values, variables = zip(*gradients_and_variables, strict=True)
        clip = {
            "norm": gradients.clip_by_norm,
            "global_norm": gradients.clip_by_global_norm,
            "value": gradients.clip_by_value,
        }[self.mode]
        clipped = clip(values, self.limit)
        # Weight decay does not need the gradient, and must wait for the check of it as well.
        present = [gradient for gradient in clipped if gradient is not None]
        with tf.control_dependencies(tf.nest.flatten(present, expand_composites=True)[:1]):
            apply(list(zip(clipped, variables, strict=True)))

    def describe(self):
        return f"clip {self.mode}={self.limit:g}"
