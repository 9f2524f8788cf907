"""The optimizers of the legacy trainer, by their legacy names and flags, with TensorFlow 1's steps.

They are Keras' optimizers, except `Momentum` and `RMSProp`, whose steps differ in Keras. Without
this package, a model that was saved with one of these two loads with `compile=False` only.
"""

import functools
from collections.abc import Callable

import keras
from absl import flags

from ..learning_rates import Schedule
from ..typed_flags import (
    DECAY,
    NOT_NEGATIVE,
    NOT_POSITIVE,
    POSITIVE,
    define_number,
    define_text,
)
from ..usage_error import check_name
from .momentum import Momentum as Momentum
from .rmsprop import RMSProp as RMSProp


def define_flags(values: flags.FlagValues) -> None:
    """Defines --optimizer and the flags of each optimizer."""
    number = functools.partial(define_number, values)

    define_text(values, "optimizer", "rmsprop", f"One of {', '.join(OPTIMIZERS)}.")
    number("adadelta_rho", 0.95, "Decay of adadelta.", DECAY)
    number("adagrad_initial_accumulator_value", 0.1, "Initial value of adagrad's sums.", POSITIVE)
    number("adam_beta1", 0.9, "Decay of adam's mean of gradients.", DECAY)
    number("adam_beta2", 0.999, "Decay of adam's mean of squares.", DECAY)
    number("opt_epsilon", 1.0, "Epsilon of adadelta, adam and rmsprop.", NOT_NEGATIVE)
    number("ftrl_learning_rate_power", -0.5, "Power of ftrl's learning rate.", NOT_POSITIVE)
    number("ftrl_initial_accumulator_value", 0.1, "Initial value of ftrl's sums.", NOT_NEGATIVE)
    number("ftrl_l1", 0.0, "L1 of ftrl.", NOT_NEGATIVE)
    number("ftrl_l2", 0.0, "L2 of ftrl.", NOT_NEGATIVE)
    number("momentum", 0.9, "Momentum of the momentum optimizer.", DECAY)
    number("rmsprop_momentum", 0.9, "Momentum of rmsprop.", DECAY)
    number("rmsprop_decay", 0.9, "Decay of rmsprop's mean of squares.", DECAY)


def check(values: flags.FlagValues) -> None:
    """Raises UsageError if the flags cannot be used."""
    check_name("--optimizer", values.optimizer, OPTIMIZERS)


def build(values: flags.FlagValues, *, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    """Returns the optimizer that the flags describe."""
    return OPTIMIZERS[values.optimizer](values, learning_rate)


def _adadelta(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adadelta(
        learning_rate, rho=values.adadelta_rho, epsilon=values.opt_epsilon
    )


def _adagrad(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adagrad(
        learning_rate,
        initial_accumulator_value=values.adagrad_initial_accumulator_value,
        epsilon=0.0,  # TensorFlow 1 has none.
    )


def _adam(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(
        learning_rate,
        beta_1=values.adam_beta1,
        beta_2=values.adam_beta2,
        epsilon=values.opt_epsilon,
    )


def _ftrl(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Ftrl(
        learning_rate,
        learning_rate_power=values.ftrl_learning_rate_power,
        initial_accumulator_value=values.ftrl_initial_accumulator_value,
        l1_regularization_strength=values.ftrl_l1,
        l2_regularization_strength=values.ftrl_l2,
    )


def _momentum(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return Momentum(learning_rate, momentum=values.momentum)


def _rmsprop(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return RMSProp(
        learning_rate,
        rho=values.rmsprop_decay,
        momentum=values.rmsprop_momentum,
        epsilon=values.opt_epsilon,
    )


def _sgd(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    del values
    return keras.optimizers.SGD(learning_rate)


OPTIMIZERS: dict[str, Callable[[flags.FlagValues, Schedule], keras.optimizers.Optimizer]] = {
    "adadelta": _adadelta,
    "adagrad": _adagrad,
    "adam": _adam,
    "ftrl": _ftrl,
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "sgd": _sgd,
}
