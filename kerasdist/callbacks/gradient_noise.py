"""Noise on the aggregated gradient."""

import math
import random
from typing import Any

import tensorflow as tf

from kerasdist import gradients
from kerasdist.training.update_callback import UpdateCallback


class GradientNoise(UpdateCallback):
    """Adds normal noise with mean 0 to the gradient of the global batch.

    Every replica adds the same noise, and every batch another. Sparse gradients get it in the rows
    that they hold.

    Args:
        stddev: Standard deviation of the noise.
        seed: Seed of the noise; None draws one.

    Raises:
        ValueError: `stddev` is not a positive number.

    Example:
        model.fit(dataset, callbacks=[GradientNoise(stddev=0.01, seed=1)])

    Source: `gradient_noise_scale` of slim's optimize_loss.
    """

    def __init__(self, stddev: float, *, seed: int | None = None):
        super().__init__()
        is_number = isinstance(stddev, (int, float)) and not isinstance(stddev, bool)
        if not is_number or not 0 < stddev < math.inf:
            raise ValueError(f"`stddev` must be a positive number. Received: stddev={stddev!r}.")
        self.stddev = stddev
        # Python's generator follows `keras.utils.set_random_seed`.
        self.seed = random.randrange(2**30) if seed is None else seed
        self._count: Any = None

    def prepare(self, model):
        if self._count is None:
            self._count = tf.Variable(0, trainable=False)

    def update(self, gradients_and_variables, apply):
        self._count.assign_add(1)
        apply(
            [
                (gradients.add_noise(gradient, self.stddev, self._seed_of(index)), variable)
                for index, (gradient, variable) in enumerate(gradients_and_variables)
            ]
        )

    def describe(self):
        return f"noise of stddev={self.stddev:g}"

    def _seed_of(self, index):
        return tf.stack([tf.convert_to_tensor(self._count), self.seed + index])
