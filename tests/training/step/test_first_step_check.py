"""Which step is checked before it runs."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step import first_step_check
from kerasdist.training.step.first_step_check import FirstStepCheck
from tests import strategies
from tests.warned import warned_by

X = np.arange(10, dtype="float32").reshape(5, 2) / 10


def batch_of(number):
    x: Any = tf.constant(X[:number])
    return x, x[:, :1]


class Check:
    """A check of a model of two replicas, and what it was asked to try."""

    def __init__(self, answer=None, *, is_built=True):
        with strategies.get("2 replicas").scope():
            self.model = keras.Sequential([keras.Input((2,))] if is_built else [])
            self.model.add(keras.layers.Dense(1))
            self.model.compile("sgd", "mse")
        self.asked: list = []
        self.answer = answer
        step: Any = SimpleNamespace(step=self.model.train_step, see=lambda batch: None)
        self.check = FirstStepCheck(
            self.model, step, self.try_step, before=lambda: self.asked.append("before")
        )

    def try_step(self, model, step, batch, *, note_unchecked, **arguments):
        self.asked.append(arguments)
        if isinstance(self.answer, str):
            note_unchecked(self.answer)
            return False
        return self.answer


@pytest.mark.parametrize(("num_of_one", "is_made"), [(99, True), (100, False)])
def test_some_batches_of_one_example_are_passed_over(num_of_one, is_made):
    ours = Check()
    for _ in range(num_of_one):
        assert not ours.check.of_batch(batch_of(1), may_repeat=True)
    assert not ours.check.is_made

    ours.check.of_batch(batch_of(5), may_repeat=True)
    assert ours.check.is_made == is_made


@pytest.mark.parametrize("answer", [True, False, None])
def test_it_is_made_once_and_says_what_the_trial_says(answer):
    ours = Check(answer)

    assert ours.check.of_batch(batch_of(5), may_repeat=True) == bool(answer)
    assert not ours.check.can_be_made()
    assert not ours.check.of_own_batch(batch_of(5), 5, may_repeat=False)
    assert ours.asked == ["before", {"may_repeat": True, "differing": None}]


def test_that_it_has_failed_is_told_once_and_not_before_the_step_has_been_made():
    ours = Check("Could not check it.")

    assert warned_by(lambda: ours.check.of_batch(batch_of(5), may_repeat=True)) == []
    assert warned_by(ours.check.end) == ["Could not check it."]
    assert warned_by(ours.check.end) == []


def test_a_model_that_is_not_built_is_checked_when_it_is():
    ours = Check(is_built=False)
    assert ours.check.is_missed()
    assert not ours.check.of_batch(batch_of(5), may_repeat=True)

    ours.model(X)
    ours.check.note_built()

    assert not ours.check.is_missed()
    ours.check.of_own_batch(batch_of(5), 5, may_repeat=False)
    assert ours.asked == ["before", {"may_repeat": False, "differing": None}]


class Scalars:
    """Stands for scalars that a step reads, which a program sets."""

    def __init__(self, model):
        self.values, self.checked = 0, []

    def note_checked(self):
        self.checked.append(self.values)

    def are_checked(self):
        return self.values in self.checked


@pytest.fixture
def ours(monkeypatch):
    """A check that has been made."""
    monkeypatch.setattr(first_step_check, "ReadScalars", Scalars)
    made = Check()
    made.check.begin(are_divided=True)
    made.check.of_batch(batch_of(5), may_repeat=True)
    return made


def is_made_again(ours, *, are_divided=True):
    """Begins an epoch; returns whether its first step is checked."""
    ours.check.begin(are_divided=are_divided)
    ours.asked.clear()
    ours.check.of_batch(batch_of(5), may_repeat=True)
    ours.check.end()
    return bool(ours.asked)


def test_it_is_made_again_where_scalars_have_values_of_which_nothing_is_known(ours):
    ours.check.end()
    assert not is_made_again(ours)

    ours.check._scalars.values = 1
    assert not is_made_again(ours, are_divided=False)
    assert is_made_again(ours)
    assert ours.check.is_made
    assert not is_made_again(ours)


def test_it_is_made_again_after_a_call_that_has_failed(ours):
    assert is_made_again(ours)
    assert not is_made_again(ours)
