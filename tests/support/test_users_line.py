"""Every warning points at the line of the program that called Keras or kerasdist."""

import inspect
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.callbacks import GradientAccumulation, StopOnNonFinite
from kerasdist.support.users_line import warn
from tests import strategies


class WarnsInItsStep(keras.Model):
    def train_step(self, data):
        _told_in_a_function()
        return super().train_step(data)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


@tf.function
def _told_in_a_function():
    if tf.constant(True):  # AutoGraph makes another function of this one.
        warn("Told in a function.")


def fit_of(kind=keras.Model, *, loss: Any = "mse", **kwargs):
    with strategies.get("2 replicas").scope():
        inputs = keras.Input((2,))
        model = kind(inputs, keras.layers.Dense(1, kernel_regularizer="l2")(inputs))
        model.compile("sgd", loss, jit_compile=kwargs.pop("jit_compile", False))
    x = np.full((4, 2), kwargs.pop("value", 1.0))
    return lambda: model.fit(x, np.ones((4, 1)), batch_size=4, verbose=0, **kwargs)  # The line.


LINE_OF_FIT = inspect.getsourcelines(fit_of)[1] + 6
TRAININGS = {
    "before its first step": (
        {"jit_compile": True, "kind": OwnStep},
        "`jit_compile=True` has no effect",
    ),
    "in a callback": (
        {"value": np.nan, "callbacks": [StopOnNonFinite(action="stop")]},
        "Step 1 is not finite",
    ),
    "in the thread of a replica": (
        {
            "loss": keras.losses.MeanSquaredError("sum"),
            "callbacks": [GradientAccumulation(steps=2)],
        },
        r"GradientAccumulation\(steps=2\) adds up a loss that is a sum",
    ),
}


@pytest.mark.parametrize("training", TRAININGS)
def test_what_a_training_warns_of_points_at_the_line_that_calls_fit(training):
    arguments, text = TRAININGS[training]
    fit = fit_of(**arguments)

    with pytest.warns(UserWarning, match=text) as told:
        fit()

    assert [(each.filename, each.lineno) for each in told] == [(__file__, LINE_OF_FIT)]


def test_a_training_in_a_thread_is_pointed_at_as_well():
    arguments, text = TRAININGS["in the thread of a replica"]

    with pytest.warns(UserWarning, match=text) as told, ThreadPoolExecutor() as executor:
        executor.submit(fit_of(**arguments)).result()

    assert [(each.filename, each.lineno) for each in told] == [(__file__, LINE_OF_FIT)]


def test_where_no_line_is_the_users_that_which_warns_is_named():
    with pytest.warns(UserWarning, match="Nobody called") as told, ThreadPoolExecutor() as executor:
        executor.submit(warn, "Nobody called kerasdist.").result()

    assert [Path(each.filename).name for each in told] == ["thread.py"]


def test_no_file_is_named_that_autograph_has_written():
    with pytest.warns(UserWarning, match="Told in a function") as told:
        fit_of(WarnsInItsStep)()

    assert {each.filename for each in told} == {__file__}


def test_the_same_line_warns_of_the_same_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for text in ("one", "one", "another"):
            warn(text)
    assert [str(each.message) for each in told] == ["one", "another"]


def test_filters_see_the_module_of_the_line():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=__name__)
        warn("Nobody reads this.")
