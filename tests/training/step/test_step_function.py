"""What Keras and callbacks ask of the function that `fit` calls for every step."""

import keras
import numpy as np
import pytest

from kerasdist.training.step.step_function import StepFunction
from tests.strategies import each_strategy

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1])


def make_step(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return StepFunction(model, model.test_step, returns_metrics=True, weighs_loss=False)


@each_strategy
def test_examples_of_all_replicas_are_counted_from_the_restart_on(strategy):
    step = make_step(strategy)

    step(iter([BATCH, BATCH]))
    assert int(step.num_examples) == 10

    step.restart()
    step(iter([BATCH]))
    assert int(step.num_examples) == 5


@each_strategy
def test_the_first_batch_after_each_restart_is_looked_at(strategy):
    step = make_step(strategy)
    broken = (X, np.full_like(BATCH[1], np.nan))
    step(iter([BATCH]))
    step(iter([broken]))  # No first one.

    step.restart()
    with pytest.warns(UserWarning, match="labels of the first batch hold NaN"):
        step(iter([broken]))
