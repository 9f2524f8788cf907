"""Accumulation of gradients over several batches."""

import tensorflow as tf

from kerasdist import gradients
from kerasdist.training import replica_step
from kerasdist.training.update_callback import UpdateCallback


class GradientAccumulation(UpdateCallback):
    """Updates the weights once for every `steps` batches, as with batches that much larger.

    Every batch counts with its number of examples, so a loss must be the mean over them: sums,
    masks and weighted means keep the divisor of the single batch. `optimizer.iterations`,
    learning-rate schedules and moving averages count updates, not batches. Callbacks before it in
    the list act on the gradient of each batch, those after it on the accumulated one. A group that
    is not full at the end of an epoch goes on in the next; what is left at the end of `fit` stays
    for the next `fit` of the model with this callback.

    Args:
        steps: Batches per update.

    Raises:
        ValueError: `steps` is less than 2, or the optimizer accumulates by itself.

    Example:
        model.fit(dataset, callbacks=[GradientAccumulation(steps=4)])
    """

    def __init__(self, steps: int):
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(f"`steps` must be an integer. Received: steps={steps!r}.")
        if steps < 2:
            raise ValueError(
                f"`steps` must be at least 2. Received: steps={steps}. Leave the callback out for "
                "an update after every batch."
            )
        self.steps = steps
        self._sums: dict = {}

    def prepare(self, model):
        if model.optimizer.gradient_accumulation_steps:
            raise ValueError(
                "The optimizer accumulates gradients already: gradient_accumulation_steps="
                f"{model.optimizer.gradient_accumulation_steps}. Use one of the two."
            )
        variables = model.trainable_variables
        if self._sums.keys() == {id(variable) for variable in variables}:
            return
        self._sums = {
            id(variable): _zeros(variable.shape, variable.dtype) for variable in variables
        }
        # Counts belong to an optimizer, which is known by its first variable.
        self._num_batches = {id(variable): _zeros((), "int32") for variable in variables}
        self._num_examples = {id(variable): _zeros((), "float32") for variable in variables}

    def update(self, gradients_and_variables, apply):
        first = id(gradients_and_variables[0][1])
        num_batches, total = self._num_batches[first], self._num_examples[first]
        num_examples = tf.cast(replica_step.global_num_examples(), tf.float32)
        num_batches.assign_add(1)
        total.assign_add(num_examples)
        present = [pair for pair in gradients_and_variables if pair[0] is not None]
        sums = [self._sums[id(variable)] for _, variable in present]
        for (gradient, _), each in zip(present, sums, strict=True):
            _add(each, gradients.multiply(gradient, num_examples))

        def apply_mean():
            share = tf.math.reciprocal(total)
            means = [gradients.multiply(tf.convert_to_tensor(each), share) for each in sums]
            apply(list(zip(means, (variable for _, variable in present), strict=True)))
            for variable in (num_batches, total, *sums):
                variable.assign(tf.zeros_like(variable))

        tf.cond(tf.greater_equal(num_batches, self.steps), apply_mean, lambda: None)

    def describe(self):
        return f"accumulate {self.steps} batches"


def _zeros(shape, dtype):
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def _add(total, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        total.scatter_add(gradient)
    else:
        total.assign_add(gradient)
