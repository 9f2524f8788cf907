"""Accumulation of gradients over several batches."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.callbacks import gradients
from kerasdist.private import custom_parts, keras_optimizers
from kerasdist.support.checks import check_int
from kerasdist.support.users_line import warn
from kerasdist.training.context import traits
from kerasdist.training.hooks.update_callback import UpdateCallback
from kerasdist.training.replica import replicas


class GradientAccumulation(UpdateCallback):
    """Updates the weights once for every `steps` batches, as with batches that much larger.

    Each batch is weighted by the divisor of its loss: the number of examples or, with a mask or
    `reduction="mean_with_sample_weight"`, the sum of the mask or weights. Losses with
    `reduction="sum"` or None are added up. So are regularizers next to them, with a warning: divide
    their factors by `steps`. In two cases the result is only approximate, because each batch is
    weighted by its number of examples: if several losses have different divisors (with a warning),
    and with a train_step or compute_loss of your own.

    `optimizer.iterations`, learning-rate schedules and moving averages count updates, not batches.
    Callbacks before it in the list act on the gradient of each batch, those after it on the
    accumulated one. A group that is not full at the end of an epoch continues in the next epoch;
    what is left at the end of `fit` is kept for the next `fit` of the model with this callback.

    Args:
        steps: Batches per update.

    Raises:
        TypeError, ValueError: `steps` is not an int of at least 2. When `fit` begins: the optimizer
            accumulates gradients itself, or there are parameter servers.

    Example:
        ```python
        model.fit(dataset, callbacks=[GradientAccumulation(steps=4)])
        ```
    """

    def __init__(self, steps: int):
        super().__init__()
        check_int("steps", steps)
        if steps < 2:
            raise ValueError(
                f"`steps` must be at least 2. Received: steps={steps}. Leave the callback out for "
                "an update after every batch."
            )
        self.steps = steps
        self._variables: list = []  # Held, so that none of another model has their ids.
        self._sums: dict = {}
        self._num_batches: dict = {}
        self._totals: dict = {}

    def prepare(self, model: keras.Model):
        if traits.is_async(model.distribute_strategy):
            raise ValueError(
                "GradientAccumulation is not supported with parameter servers whose workers are "
                "asynchronous: one would apply what another has added only in part. Leave it out, "
                "and use larger batches, or let them train together: "
                "DeploymentConfig(sync_replicas=True)."
            )
        for optimizer in keras_optimizers.updating_of(model):
            if optimizer.gradient_accumulation_steps:
                raise ValueError(
                    "The optimizer accumulates gradients already: gradient_accumulation_steps="
                    f"{optimizer.gradient_accumulation_steps}. Use one of the two."
                )
        self._knows_divisors = custom_parts.has_original_total_loss(model)
        self._has_warned = False
        variables = model.trainable_variables
        if set(map(id, self._variables)) == set(map(id, variables)):
            return
        self._variables = variables
        self._sums = {
            id(variable): _zeros(variable.shape, variable.dtype) for variable in variables
        }
        # Counts belong to an optimizer, which is known by its first variable.
        self._num_batches = {id(variable): _zeros((), "int32") for variable in variables}
        self._totals = {id(variable): _zeros((), "float32") for variable in variables}

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns what is added up so far, for a checkpoint."""
        return {name: variable.read_value().numpy() for name, variable in self._named().items()}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Goes on with the sums from `get_state()` of the same model."""
        for name, variable in self._named().items():
            variable.assign(state[name])

    def _named(self) -> dict[str, tf.Variable]:
        groups = {"sum": self._sums, "batches": self._num_batches, "total": self._totals}
        return {
            f"{group}/{index}": variable
            for group, variables in groups.items()
            for index, variable in enumerate(variables.values())
        }

    def update(self, gradients_and_variables: list, apply: Callable):
        first = id(gradients_and_variables[0][1])
        num_batches, total = self._num_batches[first], self._totals[first]
        divisor = self._divisor()
        num_batches.assign_add(1)
        if divisor is None:
            total.assign(1.0)
        else:
            total.assign_add(divisor)
        present = [pair for pair in gradients_and_variables if pair[0] is not None]
        sums = [self._sums[id(variable)] for _, variable in present]
        for (gradient, _), each in zip(present, sums, strict=True):
            _add(each, gradient if divisor is None else gradients.multiply(gradient, divisor))

        def apply_mean():
            share = tf.math.divide_no_nan(1.0, total)  # All may be masked.
            means = [gradients.multiply(tf.convert_to_tensor(each), share) for each in sums]
            apply(list(zip(means, (variable for _, variable in present), strict=True)))
            for variable in (num_batches, total, *sums):
                variable.assign(tf.zeros_like(variable))

        tf.cond(tf.greater_equal(num_batches, self.steps), apply_mean, lambda: None)

    def describe(self):
        return f"accumulate {self.steps} batches"

    def _divisor(self):
        """Returns what the loss of the batch was divided by: float32 scalar; None for a sum."""
        divisors = replicas.divisors() if self._knows_divisors else []
        if len(divisors) > 1:
            self._warn_once(
                f"The losses of the model '{self.model.name}' are divided by different numbers: "
                f"{', '.join(each.name for each in divisors)}. No weight of a batch is right for "
                "all of them, so GradientAccumulation counts each batch with its number of "
                "examples, and training differs from that with larger batches. Give all losses "
                'reduction="sum", or use larger batches.'
            )
        if len(divisors) != 1:
            return tf.cast(replicas.global_num_examples(), tf.float32)
        total = divisors[0].total
        if total is None and self.model.losses:
            self._warn_once(
                f"GradientAccumulation(steps={self.steps}) adds up a loss that is a sum, and with "
                f"it the losses that regularizers and layers of the model '{self.model.name}' add: "
                f"they count {self.steps} times, and in larger batches once. Divide their factors "
                f'by {self.steps}, or use reduction="sum_over_batch_size".'
            )
        return None if total is None else tf.cast(total, tf.float32)

    def _warn_once(self, message: str):
        # Every replica is traced, and again for every new shape.
        if not self._has_warned:
            self._has_warned = True
            warn(message)


def _zeros(shape: Any, dtype: str):
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def _add(total: tf.Variable, gradient: Any):
    if isinstance(gradient, tf.IndexedSlices):
        total.scatter_add(gradient)
    else:
        total.assign_add(gradient)
