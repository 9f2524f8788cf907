"""The learning rate schedules of the legacy trainer, by their legacy names."""

from collections.abc import Callable
from typing import Any

import keras
from absl import flags

import kerasdist

from .typed_flags import NOT_NEGATIVE, POSITIVE, define_number
from .usage_error import check_name

_MOST_STEPS = 2**31 - 1  # No training makes as many, and not every number can be an int or float32.
Schedule = keras.optimizers.schedules.LearningRateSchedule


def define_flags(values: flags.FlagValues) -> None:
    """Defines --learning_rate and the flags of its decay."""
    define_number(values, "learning_rate", 0.01, "The initial learning rate.", NOT_NEGATIVE)
    flags.DEFINE_string(
        "learning_rate_decay_type",
        "exponential",
        f"How the learning rate falls: {', '.join(SCHEDULES)}. exponential multiplies it by "
        "--learning_rate_decay_factor every --num_epochs_per_decay epochs; polynomial goes in a "
        "straight line to --end_learning_rate within --num_epochs_per_decay epochs.",
        flag_values=values,
    )
    define_number(
        values, "end_learning_rate", 0.0001, "Last value of polynomial decay.", NOT_NEGATIVE
    )
    define_number(
        values, "learning_rate_decay_factor", 0.94, "Factor of exponential decay.", POSITIVE
    )
    define_number(
        values,
        "num_epochs_per_decay",
        2.0,
        "Epochs per decay, counted as if one clone read all data: with two clones, the learning "
        "rate falls after twice as many epochs. Workers that make a step together read an epoch "
        "together; asynchronous ones count the steps of any.",
        POSITIVE,
    )


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    check_name("--learning_rate_decay_type", values.learning_rate_decay_type, SCHEDULES)


def build(
    values: flags.FlagValues,
    *,
    num_examples: int,
    num_to_aggregate: int = 1,
    whole_steps: bool = False,
) -> Schedule:
    """Returns the learning rate for a Keras optimizer, a function of global steps.

    Args:
        values: The flags; --batch_size, per clone, sets the length of an epoch of one clone.
        num_examples: In the training split.
        num_to_aggregate: Batches that make each step together, one worker's each; as in slim, an
            epoch then has fewer steps. With asynchronous workers 1: each makes its own steps.
        whole_steps: Whether the steps between two decays are rounded down, as in the Inception
            trainer; slim divides those of one worker, as in 58 / 3.
    """
    decay_steps = kerasdist.schedules.decay_steps(
        num_examples=num_examples,
        num_epochs=min(values.num_epochs_per_decay, _MOST_STEPS),
        batch_size=values.batch_size,
        replicas_to_aggregate=num_to_aggregate,
    )
    schedule = SCHEDULES[values.learning_rate_decay_type]
    steps = min(max(int(decay_steps) if whole_steps else decay_steps, 1), _MOST_STEPS)
    return schedule(values, steps)


def _fixed(values: flags.FlagValues, decay_steps: float) -> Schedule:
    del decay_steps
    return Fixed(values.learning_rate)


def _exponential(values: flags.FlagValues, decay_steps: float) -> Schedule:
    return keras.optimizers.schedules.ExponentialDecay(
        values.learning_rate,
        decay_steps=decay_steps,
        decay_rate=values.learning_rate_decay_factor,
        staircase=True,
    )


def _polynomial(values: flags.FlagValues, decay_steps: float) -> Schedule:
    return keras.optimizers.schedules.PolynomialDecay(
        values.learning_rate,
        decay_steps=decay_steps,
        end_learning_rate=values.end_learning_rate,
        power=1.0,
    )


@keras.saving.register_keras_serializable("models")
class Fixed(Schedule):
    """A learning rate that does not change.

    Keras keeps a plain number as a variable, and a run that resumes would get that of its
    checkpoint. A schedule comes from the flags, as every learning rate of slim does.

    Args:
        learning_rate: The learning rate.
    """

    def __init__(self, learning_rate: float):
        self.learning_rate = learning_rate

    def __call__(self, step: Any):
        del step
        return keras.ops.convert_to_tensor(self.learning_rate, "float32")

    def get_config(self):
        return {"learning_rate": self.learning_rate}


SCHEDULES: dict[str, Callable[[flags.FlagValues, float], Schedule]] = {
    "exponential": _exponential,
    "fixed": _fixed,
    "polynomial": _polynomial,
}
