"""Our train functions have what Keras, the routes and callbacks ask of one.

`ty` says the same of their methods; it does not see whether an attribute is set in every case.
"""

import inspect
from typing import Any

import keras
import pytest

from kerasdist.training.hooks.train_function import EnclosingFunction, TrainFunction
from kerasdist.training.parameter_servers.step_function import WorkerStepFunction
from kerasdist.training.step.step_function import StepFunction


def members() -> set[str]:
    names = {*inspect.get_annotations(TrainFunction), *vars(TrainFunction)}
    return {name for name in names if name == "__call__" or not name.startswith("_")}


@pytest.mark.parametrize("make", [StepFunction, WorkerStepFunction])
def test_a_train_function_has_what_is_asked_of_one(worker_in_process, make):
    with worker_in_process.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    step = make(model, model.train_step, returns_metrics=True, weighs_loss=True)

    asked = members()
    assert {"callbacks", "num_examples", "restart", "__call__"} <= asked
    assert not [name for name in asked if not hasattr(step, name)]


def answering() -> Any:
    """Returns a class of train functions that has an answer of its own to all that is asked."""
    names = members() - {"__call__"}
    methods = {name for name in names if inspect.isfunction(vars(TrainFunction).get(name))}
    answers = {
        name: (lambda self, name=name: self.asked.append(name))
        if name in methods
        else f"the {name}"
        for name in names
    }
    return type("Answering", (TrainFunction,), {**answers, "asked": [], "__call__": lambda *_: {}})


def test_one_around_another_asks_that_for_all():
    inside = answering()()

    class Around(EnclosingFunction):
        def __call__(self, data):
            return {}

    around = Around(inside)
    for name in members() - {"__call__"}:
        answer = getattr(around, name)
        if callable(answer):
            answer()
            assert inside.asked.pop() == name
        else:
            assert answer == f"the {name}"
