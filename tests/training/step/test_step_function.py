"""What Keras and callbacks ask of the function that `fit` calls for every step."""

import contextlib
import dataclasses

import keras
import numpy as np
import pytest

from kerasdist.training.context import deployment
from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.replica import replicas
from kerasdist.training.step import repeated_batches
from kerasdist.training.step.step_function import StepFunction
from tests import strategies
from tests.strategies import each_kind_of_strategy

X = np.arange(10, dtype="float32").reshape(5, 2) / 10
BATCH = (X, X[:, :1])


def make_step(strategy, *, is_built=True, **arguments):
    with strategy.scope():
        inputs = [keras.Input((2,))] if is_built else []
        model = keras.Sequential([*inputs, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return StepFunction(
        model, model.test_step, returns_metrics=True, weighs_loss=False, **arguments
    )


@each_kind_of_strategy
def test_examples_of_all_replicas_are_counted_from_the_restart_on(strategy):
    step = make_step(strategy)

    step(iter([BATCH, BATCH]))
    assert int(step.num_examples) == 10

    step.restart()
    step(iter([BATCH]))
    assert int(step.num_examples) == 5


@each_kind_of_strategy
def test_the_first_batch_after_each_restart_is_looked_at(strategy):
    step = make_step(strategy)
    broken = (X, np.full_like(BATCH[1], np.nan))
    step(iter([BATCH]))
    step(iter([broken]))  # No first one.

    step.restart()
    with pytest.warns(UserWarning, match="labels of the first batch hold NaN"):
        step(iter([broken]))


class Watch:
    """Notes which calls may take longer than a step."""

    def __init__(self):
        self.are_long = []

    @contextlib.contextmanager
    def call(self, count_batches, *, is_first):
        self.are_long.append(is_first)
        yield

    def expect_trace(self):
        self.are_long[-1] = True


@each_kind_of_strategy
def test_who_watches_hears_of_each_call_that_is_checked_or_traced(strategy, monkeypatch):
    watch, checked = Watch(), []
    watched = dataclasses.replace(deployment.of(strategy), step_watch=watch)
    monkeypatch.setattr(strategy, "deployment", watched, raising=False)

    def try_step(model, step, batch, *, note_unchecked, may_repeat, differing):
        checked.append(len(watch.are_long))

    step = make_step(strategy, is_built=False, trial=try_step)
    for _ in range(3):  # A trace makes the weights, and the first one is checked.
        step.restart()
        step(iter([BATCH]))
    step.trace_again()
    step(iter([BATCH]))
    step(iter([BATCH]))

    assert watch.are_long == [True, False, False, True, False]
    assert checked == [1]


class LooksAtEveryThird(StepCallback):
    """Notes which of its steps were traced as unobserved."""

    def __init__(self):
        super().__init__()
        self.num_batches = 0
        self.were_unobserved = []

    def looks_within(self, num_steps):
        return (self.num_batches + num_steps) // 3 > self.num_batches // 3

    def observe_update(self, gradients_and_variables):
        step = replicas.current()
        assert step is not None
        self.were_unobserved.append(step.options.is_unobserved)

    def on_train_batch_end(self, batch, logs=None):
        self.num_batches = batch + 1


@pytest.mark.parametrize(
    ("arguments", "were_unobserved"),
    [
        # A graph for each kind; the first step is of those at which there is a look.
        ({}, [False, True]),
        ({"steps_per_execution": 2}, [False, True]),
        ({"steps_per_execution": 4}, [False]),
        ({"run_eagerly": True}, [False, True, False, True, True, False, True, True]),
    ],
    ids=str,
)
def test_steps_at_which_nobody_looks_have_a_graph_of_their_own(arguments, were_unobserved):
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **arguments)
    callback = LooksAtEveryThird()
    x = np.ones((8, 2), "float32")
    model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0, callbacks=[callback])

    assert callback.were_unobserved == were_unobserved


@strategies.on_two_replicas
def test_data_that_workers_read_for_themselves_cannot_be_repeated(strategy, monkeypatch):
    step = make_step(strategy, trial=lambda *_, **__: True)
    step(iter([BATCH]))
    assert step.is_repeated
    step(iter([BATCH]))  # Without a word.

    monkeypatch.setattr(step._repeated, "_is_one_worker", False)
    monkeypatch.setattr(repeated_batches, "_are_of_all_workers", lambda data: False)
    with pytest.warns(UserWarning, match="Each worker reads its own part of this data"):
        step(iter([BATCH]))
    assert not step.is_repeated


@strategies.on_two_replicas
def test_a_step_that_fails_with_all_of_a_batch_is_divided_as_before(strategy):
    step = make_step(strategy)
    with pytest.raises(ValueError, match="incompatible"):
        step(iter([(X[:, :1], X[:, :1])]))
    assert not step.is_repeated

    step(iter([BATCH]))
    assert not step.is_repeated
