"""The optimizers: their legacy defaults, and the steps of TensorFlow 1."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from models import optimizers
from models.learning_rates import Fixed
from models.usage_error import UsageError
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy


def parse(*argv):
    values = flags.FlagValues()
    optimizers.define_flags(values)
    values(["", *argv])
    return values


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adadelta", {"rho": 0.95, "epsilon": 1.0}),
        ("adagrad", {"initial_accumulator_value": 0.1}),
        ("adam", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1.0}),
        ("ftrl", {"learning_rate_power": -0.5, "initial_accumulator_value": 0.1}),
        ("momentum", {"momentum": 0.9}),
        ("rmsprop", {"rho": 0.9, "momentum": 0.9, "epsilon": 1.0}),
        ("sgd", {"momentum": 0.0}),
    ],
)
def test_every_optimizer_has_the_legacy_defaults(name, settings):
    optimizer = optimizers.build(parse(f"--optimizer={name}"), learning_rate=Fixed(0.01))

    config = optimizer.get_config()
    assert {key: config[key] for key in settings} == settings
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


def test_a_flag_reaches_its_optimizer():
    values = parse("--optimizer=momentum", "--momentum=0.5")

    assert optimizers.build(values, learning_rate=Fixed(0.01)).momentum == 0.5


def test_an_unknown_optimizer_is_answered_with_the_names():
    with pytest.raises(UsageError, match=r"--optimizer 'adm'.*did you mean 'adam'\?"):
        optimizers.check(parse("--optimizer=adm"))


GRADIENTS = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
START = np.linspace(-1, 1, 6).astype("float32")
RATE = keras.optimizers.schedules.ExponentialDecay(0.1, 40, 0.5, staircase=True)
# How TensorFlow 1 makes each, with the legacy defaults.
OF_TENSORFLOW_1 = {
    "adadelta": lambda train, rate: train.AdadeltaOptimizer(rate, rho=0.95, epsilon=1.0),
    "adagrad": lambda train, rate: train.AdagradOptimizer(rate, initial_accumulator_value=0.1),
    "adam": lambda train, rate: train.AdamOptimizer(rate, epsilon=1.0),
    "ftrl": lambda train, rate: train.FtrlOptimizer(rate, initial_accumulator_value=0.1),
    "momentum": lambda train, rate: train.MomentumOptimizer(rate, 0.9),
    "rmsprop": lambda train, rate: train.RMSPropOptimizer(
        rate, decay=0.9, momentum=0.9, epsilon=1.0
    ),
    "sgd": lambda train, rate: train.GradientDescentOptimizer(rate),
}


def weights_of_tensorflow_1(make) -> np.ndarray:
    """Returns the weights after every step: float32 [200, 6]."""
    v1, weights = tf.compat.v1, []
    with tf.Graph().as_default(), v1.Session() as session:
        rate, gradient = v1.placeholder(tf.float32, []), v1.placeholder(tf.float32, [6])
        variable = v1.get_variable("weight", initializer=START)
        step = make(v1.train, rate).apply_gradients([(gradient, variable)])
        session.run(v1.global_variables_initializer())
        for index, values in enumerate(GRADIENTS):
            session.run(step, {gradient: values, rate: 0.1 * 0.5 ** (index // 40)})
            weights.append(session.run(variable))
    return np.stack(weights)


@pytest.mark.parametrize("name", OF_TENSORFLOW_1)
def test_steps_are_those_of_tensorflow_1_while_the_learning_rate_falls(name):
    optimizer = optimizers.build(parse(f"--optimizer={name}"), learning_rate=RATE)
    variable, weights = keras.Variable(START), []
    for gradient in GRADIENTS:
        optimizer.apply([tf.constant(gradient)], [variable])
        weights.append(variable.numpy())

    np.testing.assert_allclose(
        np.stack(weights), weights_of_tensorflow_1(OF_TENSORFLOW_1[name]), rtol=1e-5, atol=1e-6
    )


@each_strategy
@pytest.mark.parametrize("name", ["rmsprop", *exhaustive("momentum")])
def test_ours_train_a_model_as_plain_keras_does_and_are_loaded(strategy, name, tmp_path):
    x = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")

    def make():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizers.build(parse(f"--optimizer={name}"), learning_rate=RATE), "mse")
        return model

    def run(model):
        model.fit(x, x[:, :2], batch_size=8, epochs=2, shuffle=False, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert type(loaded.optimizer) is type(model.optimizer)
        return loaded.fit(x, x[:, :2], batch_size=8, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, run)


@pytest.mark.parametrize(
    "flag",
    [
        "--opt_epsilon=-5",
        "--opt_epsilon=inf",
        "--rmsprop_decay=5",
        "--adam_beta1=2",
        "--momentum=3",
        "--momentum=nan",
        "--ftrl_l1=-1",
        "--ftrl_learning_rate_power=1",
        "--adagrad_initial_accumulator_value=-1",
        "--adadelta_rho=much",
    ],
)
def test_a_number_outside_its_range_is_refused_with_the_flag(flag):
    with pytest.raises(flags.IllegalFlagValueError, match=f"flag {flag}"):
        parse(flag)
