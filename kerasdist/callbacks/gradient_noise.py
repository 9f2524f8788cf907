"""Noise on the aggregated gradient."""

import keras

from kerasdist import gradients
from kerasdist.training.update_callback import UpdateCallback


class GradientNoise(UpdateCallback):
    """Adds normal noise with mean 0 to the gradient of the global batch.

    Every replica adds the same noise. Sparse gradients get it in the rows that they hold.

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
        if isinstance(stddev, bool) or not isinstance(stddev, (int, float)) or not stddev > 0:
            raise ValueError(f"`stddev` must be a positive number. Received: stddev={stddev!r}.")
        self.stddev = stddev
        self.seed = keras.random.SeedGenerator(seed).get_config()["seed"] or 0

    def prepare(self, model):
        self._iterations = model.optimizer.iterations

    def update(self, gradients_and_variables, apply):
        apply(
            [
                (gradients.add_noise(gradient, self.stddev, self._seed_of(index)), variable)
                for index, (gradient, variable) in enumerate(gradients_and_variables)
            ]
        )

    def describe(self):
        return f"noise of stddev={self.stddev:g}"

    def _seed_of(self, index):
        step = keras.ops.cast(self._iterations, "int32")
        return keras.ops.stack([step, self.seed + index])
