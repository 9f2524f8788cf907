"""A step as one device makes it, beside the step of `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step import whole_step
from tests.strategies import each_strategy

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1] + 1)


def make_model(strategy=None):
    keras.utils.set_random_seed(4)
    scope = strategy.scope() if strategy else tf.name_scope("")
    with scope:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@each_strategy
@pytest.mark.parametrize("run", [whole_step.run_whole, whole_step.run_shares])
def test_the_whole_and_the_shares_train_as_plain_keras(strategy, run):
    plain, model = make_model(), make_model(strategy)
    loss = plain.train_on_batch(*BATCH)

    logs = run(model, BATCH)

    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@each_strategy
def test_what_a_step_changes_is_put_back(strategy):
    model = make_model(strategy)
    model.train_on_batch(*BATCH)
    state = [variable.numpy() for variable in variables_of(model)]

    with pytest.raises(KeyError), whole_step.state_kept(model):
        whole_step.run_whole(model, BATCH)
        raise KeyError

    for variable, value in zip(variables_of(model), state, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def variables_of(model):
    return [*model.variables, *model.metrics_variables, *model.optimizer.variables]
