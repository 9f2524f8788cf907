"""Learning rates: the numbers of the legacy trainers, and what Keras lacks."""

import math

import keras
import numpy as np
import pytest

from kerasdist.schedules import WarmUp, decay_steps
from tests import strategies

IMAGENET = 1_281_167


@pytest.fixture(autouse=True, scope="module")
def _reserve_devices():
    strategies.get("2 replicas")  # TensorFlow fixes its devices at the first tensor.


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"num_epochs": 2, "batch_size": 32}, 80072.0),
        ({"num_epochs": 2.0, "batch_size": 32}, 80072.0),
        ({"num_epochs": 2, "batch_size": 32, "replicas_to_aggregate": 50}, 1601.44),
        # The Inception trainer: a schedule that its published run never reached.
        ({"num_epochs": 30, "batch_size": 256}, 150136.0),
        ({"num_epochs": 0.5, "batch_size": 32}, 20018.0),
    ],
)
def test_decay_steps_are_those_of_the_legacy_trainers(arguments, steps):
    assert decay_steps(num_examples=IMAGENET, **arguments) == pytest.approx(steps, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["num_examples", "num_epochs", "batch_size", "replicas_to_aggregate"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_that_are_not_positive_are_refused(name, value):
    arguments = {"num_examples": 10, "num_epochs": 1, "batch_size": 2} | {name: value}

    with pytest.raises(ValueError, match=f"{name}={value}"):
        decay_steps(**arguments)


def test_kerass_staircase_is_the_legacy_one_with_steps_that_are_no_integer():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.045, 800.5, 0.94, staircase=True)

    assert rates(schedule, 0, 800, 801, 1602) == pytest.approx(
        [0.045, 0.045, 0.0423, 0.03976], abs=5e-6
    )


def test_kerass_polynomial_is_the_legacy_one():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.01, 100, 0.0001, power=1.0)

    assert rates(schedule, 50, 100, 1000) == pytest.approx([0.00505, 0.0001, 0.0001])


def test_warm_up_rises_from_the_rate_of_one_replica_to_that_of_all():
    assert rates(WarmUp(0.1, num_steps=10, scale=8), 0, 5, 10, 11, 1000) == pytest.approx(
        [0.1, 0.45, 0.8, 0.8, 0.8]
    )


def test_warm_up_without_scale_changes_nothing():
    assert rates(WarmUp(0.1, num_steps=10), 0, 5, 10) == pytest.approx([0.1] * 3)


def test_warm_up_of_no_steps_has_the_full_rate_from_the_start():
    assert rates(WarmUp(0.1, num_steps=0, scale=8), 0, 1) == pytest.approx([0.8, 0.8])


def test_the_schedule_may_be_any_function_of_the_step():
    assert rates(WarmUp(lambda step: 0.1 * step, num_steps=4, scale=3), 1, 4) == pytest.approx(
        [0.1 * 1.5, 0.4 * 3]
    )


def test_the_schedule_after_the_warm_up_counts_from_the_start_of_training():
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True)
    schedule = WarmUp(decay, num_steps=20, scale=4)

    assert rates(schedule, 0, 9, 10, 20, 30) == pytest.approx(
        [0.1, 0.1 * 2.35, 0.05 * 2.5, 0.025 * 4, 0.0125 * 4]
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_steps": -1}, ValueError, "`num_steps` must be at least 0.*num_steps=-1"),
        ({"num_steps": "3"}, TypeError, "num_steps='3'"),
        ({"num_steps": 1.5}, TypeError, "num_steps=1.5"),
        ({"num_steps": True}, TypeError, "num_steps=True"),
        ({"num_steps": 1, "scale": 0}, ValueError, "scale=0"),
        ({"num_steps": 1, "scale": -2.0}, ValueError, "scale=-2.0"),
        ({"num_steps": 1, "scale": math.inf}, ValueError, "scale=inf"),
        ({"schedule": "0.1", "num_steps": 1}, TypeError, "number or a schedule.*schedule='0.1'"),
        ({"schedule": math.nan, "num_steps": 1}, ValueError, "at least 0.*schedule=nan"),
        ({"schedule": -0.1, "num_steps": 1}, ValueError, "at least 0.*schedule=-0.1"),
        ({"schedule": lambda: 0.1, "num_steps": 1}, TypeError, "called with the step.*lambda"),
        ({"schedule": WarmUp, "num_steps": 1}, TypeError, "called with the step.*class.*WarmUp"),
    ],
)
def test_arguments_out_of_their_range_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        WarmUp(**({"schedule": 0.1} | arguments))


@pytest.mark.parametrize("inner", ["number", "schedule"])
def test_a_schedule_comes_back_from_its_config(inner):
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    schedule = WarmUp(0.1 if inner == "number" else decay, num_steps=20, scale=4)
    config = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(config)

    assert isinstance(again, WarmUp)
    assert rates(again, 0, 7, 30) == rates(schedule, 0, 7, 30)


def test_a_compiled_model_comes_back_with_its_schedule(tmp_path):
    strategy = strategies.get("2 replicas")
    decay = keras.optimizers.schedules.PolynomialDecay(0.1, 30, 0.01)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(WarmUp(decay, num_steps=4, scale=2)), "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")

    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    # After 2 steps: (0.1 - 2 / 30 * 0.09) * (1 + 2 / 4).
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.141)


def test_training_uses_the_rate_of_every_step():
    with strategies.get("2 replicas").scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        optimizer = keras.optimizers.SGD(WarmUp(0.1, num_steps=3, scale=4))
        model.compile(optimizer, loss=lambda target, output: -output[:, 0])
    ones = np.ones((10, 1), "float32")
    model.fit(ones, ones, batch_size=2, verbose=0)

    assert model.get_weights()[0].item() == pytest.approx(0.1 + 0.2 + 0.3 + 0.4 + 0.4)
