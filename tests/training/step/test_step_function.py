"""What Keras and callbacks ask of the function that `fit` calls for every step."""

import keras
import numpy as np
import pytest

from kerasdist.training.step import replica_step
from kerasdist.training.step.step_function import StepFunction
from kerasdist.training.step.update_callback import StepCallback
from tests import strategies
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


class LooksAtEveryThird(StepCallback):
    """Notes which of its steps were traced as quiet."""

    def __init__(self):
        super().__init__()
        self.num_batches = 0
        self.were_quiet = []

    def looks_within(self, num_steps):
        return (self.num_batches + num_steps) // 3 > self.num_batches // 3

    def observe_update(self, gradients_and_variables):
        step = replica_step.current()
        assert step is not None
        self.were_quiet.append(step.is_quiet)

    def on_train_batch_end(self, batch, logs=None):
        self.num_batches = batch + 1


@pytest.mark.parametrize(
    ("arguments", "were_quiet"),
    [
        # A graph for each kind; the first step is of those at which there is a look.
        ({}, [False, True]),
        ({"steps_per_execution": 2}, [False, True]),
        ({"steps_per_execution": 4}, [False]),
        ({"run_eagerly": True}, [False, True, False, True, True, False, True, True]),
    ],
    ids=str,
)
def test_steps_at_which_nobody_looks_have_a_graph_of_their_own(arguments, were_quiet):
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **arguments)
    callback = LooksAtEveryThird()
    x = np.ones((8, 2), "float32")
    model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0, callbacks=[callback])

    assert callback.were_quiet == were_quiet
