"""Learning rates over the steps: what Keras' own schedules lack.

Keras has the decays themselves: ExponentialDecay(staircase=True), PolynomialDecay, and a plain
number for a fixed rate. Here are the number of steps in which they decay, and a warm-up.

    steps = decay_steps(num_examples=1_281_167, num_epochs=2, batch_size=32)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.045, steps, 0.94, staircase=True)
    optimizer = keras.optimizers.SGD(WarmUp(schedule, num_steps=500, scale=8))
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.support.checks import check_int, check_positive, is_number


def decay_steps(
    *, num_examples: int, num_epochs: float, batch_size: int, replicas_to_aggregate: int = 1
) -> float:
    """Returns the optimizer steps in `num_epochs`, for `decay_steps` of Keras' schedules.

    Args:
        num_examples: Examples of an epoch, over all workers.
        num_epochs: Epochs between two decays.
        batch_size: Examples of one gradient. The TF-Slim trainers count the batch of one clone.
        replicas_to_aggregate: Gradients that make one step, with synchronous replicas.

    Returns:
        int(num_examples * num_epochs / batch_size) / replicas_to_aggregate.

    Raises:
        TypeError, ValueError: One is not a number, or not positive.

    Example:
        ```python
        decay_steps(num_examples=1_281_167, num_epochs=2, batch_size=32)      # 80072.0
        ```

    Source: _configure_learning_rate of train_image_classifier.
    """
    for name, value in {
        "num_examples": num_examples,
        "num_epochs": num_epochs,
        "batch_size": batch_size,
        "replicas_to_aggregate": replicas_to_aggregate,
    }.items():
        check_positive(name, value)
    return int(num_examples * num_epochs / batch_size) / replicas_to_aggregate


@keras.saving.register_keras_serializable(package="kerasdist")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the learning rate linearly before another schedule, and scales it by the replicas.

    A global batch that is n times larger needs a learning rate n times larger, which is too much
    for the first steps. So the rate rises from that of a single replica to `scale` times it.

    Args:
        schedule: The rate for a single replica: a number, or a schedule or another function of the
            step. It counts steps from the start of training, the warm-up included.
        num_steps: Steps of the warm-up.
        scale: Factor after the warm-up; the number of replicas, for linear scaling.

    Raises:
        TypeError, ValueError: `schedule` is neither a finite number of at least 0 nor a function of
            the step, `num_steps` is not an int or is negative, or `scale` is not a finite positive
            number.

    Example:
        ```python
        keras.optimizers.SGD(WarmUp(0.1, num_steps=500, scale=strategy.num_replicas_in_sync))
        ```

    Source: Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2.
    """

    def __init__(
        self, schedule: float | Callable[[Any], Any], *, num_steps: int, scale: float = 1.0
    ):
        _check_schedule(schedule)
        check_int("num_steps", num_steps, at_least=0)
        check_positive("scale", scale, finite=True)
        self.schedule = schedule
        self.num_steps = num_steps
        self.scale = scale

    def __call__(self, step):
        rate: Any = self.schedule(step) if callable(self.schedule) else self.schedule
        if self.num_steps == 0:
            return rate * self.scale
        progress = keras.ops.minimum(keras.ops.cast(step, "float32") / self.num_steps, 1.0)
        return rate * (1.0 + (self.scale - 1.0) * progress)

    def get_config(self):
        schedule = self.schedule
        if callable(schedule):
            schedule = keras.saving.serialize_keras_object(schedule)
        return {"schedule": schedule, "num_steps": self.num_steps, "scale": self.scale}

    @classmethod
    def from_config(cls, config):
        schedule = config["schedule"]
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule)
        return cls(**{**config, "schedule": schedule})


def _check_schedule(schedule):
    if is_number(schedule):
        if not 0 <= schedule < math.inf:  # It refuses nan, too.
            raise ValueError(
                "`schedule` must be a schedule, or a finite number of at least 0. "
                f"Received: schedule={schedule}."
            )
    elif not _takes_step(schedule):
        raise TypeError(
            "`schedule` must be a number or a schedule, which is called with the step. "
            f"Received: schedule={schedule!r}."
        )


def _takes_step(schedule) -> bool:
    """Whether a schedule can be called with the step; Keras' functions for a rate take nothing."""
    if not callable(schedule) or isinstance(schedule, type):
        return False
    try:
        inspect.signature(schedule).bind(0)
    except TypeError:
        return False
    except ValueError:  # A function in C does not say what it takes.
        pass
    return True
