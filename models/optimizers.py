"""The optimizers of the legacy trainer, by their legacy names and flags, as Keras has them.

adadelta, adagrad, adam, ftrl and sgd make the steps of TensorFlow 1. Two differ: rmsprop starts its
mean of squares at zero, where TensorFlow 1 started at one, and momentum remembers steps instead of
gradients, which shows while the learning rate falls.
"""

from collections.abc import Callable

import keras
from absl import flags

from models.learning_rates import Schedule
from models.usage_error import check_name


def define_flags(values: flags.FlagValues) -> None:
    """Define --optimizer and the flags of each optimizer."""

    def number(name: str, default: float, help: str) -> None:
        flags.DEFINE_float(name, default, help, flag_values=values)

    flags.DEFINE_string(
        "optimizer", "rmsprop", f"One of {', '.join(OPTIMIZERS)}.", flag_values=values
    )
    number("adadelta_rho", 0.95, "Decay of adadelta.")
    number("adagrad_initial_accumulator_value", 0.1, "Where adagrad's sums of squares start.")
    number("adam_beta1", 0.9, "Decay of adam's mean of gradients.")
    number("adam_beta2", 0.999, "Decay of adam's mean of squares.")
    number("opt_epsilon", 1.0, "Epsilon of adadelta, adam and rmsprop.")
    number("ftrl_learning_rate_power", -0.5, "Power of ftrl's learning rate.")
    number("ftrl_initial_accumulator_value", 0.1, "Where ftrl's sums of squares start.")
    number("ftrl_l1", 0.0, "L1 of ftrl.")
    number("ftrl_l2", 0.0, "L2 of ftrl.")
    number("momentum", 0.9, "Momentum of the momentum optimizer.")
    number("rmsprop_momentum", 0.9, "Momentum of rmsprop.")
    number("rmsprop_decay", 0.9, "Decay of rmsprop's mean of squares.")


def check(values: flags.FlagValues) -> None:
    """Raise UsageError where the flags cannot be used."""
    check_name("--optimizer", values.optimizer, OPTIMIZERS)


def build(values: flags.FlagValues, *, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    """Return the optimizer that the flags describe."""
    return OPTIMIZERS[values.optimizer](values, learning_rate)


def _adadelta(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adadelta(
        learning_rate, rho=values.adadelta_rho, epsilon=values.opt_epsilon
    )


def _adagrad(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adagrad(
        learning_rate, initial_accumulator_value=values.adagrad_initial_accumulator_value
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
    return keras.optimizers.SGD(learning_rate, momentum=values.momentum)


def _rmsprop(values: flags.FlagValues, learning_rate: Schedule) -> keras.optimizers.Optimizer:
    return keras.optimizers.RMSprop(
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
