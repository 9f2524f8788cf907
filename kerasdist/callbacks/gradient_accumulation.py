"""Accumulation of gradients over several batches."""

import tensorflow as tf

from kerasdist import gradients
from kerasdist.training import replica_step
from kerasdist.training.update_callback import UpdateCallback


class GradientAccumulation(UpdateCallback):
    """Updates the weights once for every `steps` batches, as with batches that much larger.

    Every batch counts with its number of examples. `optimizer.iterations`, learning-rate schedules
    and moving averages count updates, not batches. Callbacks before it in the list act on the
    gradient of each batch, those after it on the accumulated one. A group that is not full at the
    end of an epoch goes on in the next; what is left at the end of `fit` stays for the next `fit`
    of the model with this callback.

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
        self._prepared_for = None

    def prepare(self, model):
        if model.optimizer.gradient_accumulation_steps:
            raise ValueError(
                "The optimizer accumulates gradients already: gradient_accumulation_steps="
                f"{model.optimizer.gradient_accumulation_steps}. Use one of the two."
            )
        if self._prepared_for is model:
            return
        self._prepared_for = model
        self._num_batches = tf.Variable(0, trainable=False)
        self._num_examples = tf.Variable(0.0, trainable=False)
        self._sums = {
            variable.path: tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            for variable in model.trainable_variables
        }

    def update(self, gradients_and_variables, apply):
        num_examples = tf.cast(replica_step.global_num_examples(), tf.float32)
        self._num_batches.assign_add(1)
        self._num_examples.assign_add(num_examples)
        present = [pair for pair in gradients_and_variables if pair[0] is not None]
        for gradient, variable in present:
            _add(self._sums[variable.path], gradients.multiply(gradient, num_examples))

        def apply_mean():
            share = tf.math.reciprocal(self._num_examples)
            sums = [tf.convert_to_tensor(self._sums[variable.path]) for _, variable in present]
            means = [gradients.multiply(total, share) for total in sums]
            apply(list(zip(means, (variable for _, variable in present), strict=True)))
            self._reset()

        tf.cond(tf.greater_equal(self._num_batches, self.steps), apply_mean, lambda: None)

    def describe(self):
        return f"accumulate {self.steps} batches"

    def _reset(self):
        for variable in (self._num_batches, self._num_examples, *self._sums.values()):
            variable.assign(tf.zeros_like(variable))


def _add(total, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        total.scatter_add(gradient)
    else:
        total.assign_add(gradient)
