"""Models that override `make_train_function` train where they can, and say where they cannot."""

import contextlib
import gc
import types
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from kerasdist.cluster import Cluster, Task
from kerasdist.training.step import custom_functions
from tests import strategies
from tests.strategies import each_strategy, on_two_replicas

X = np.random.default_rng(3).normal(size=(10, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class OwnTraining(keras.Sequential):
    num_traces = 0

    def make_train_function(self, force=False):
        if self.train_function is None or force:

            @tf.function
            def step(iterator):
                self.num_traces += 1
                return self.train_step(next(iterator))

            self.train_function = step
        return self.train_function


class OwnEvaluation(keras.Sequential):
    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = tf.function(lambda iterator: self.test_step(next(iterator)))
        return self.test_function


class Wrapping(keras.Sequential):
    num_calls = 0

    def make_train_function(self, force=False):
        super().make_train_function(force)
        function = self.train_function

        def step(iterator):
            self.num_calls += 1
            return function(iterator)

        self.train_function = step
        return step


class WrappingWithoutForce(keras.Sequential):
    def make_train_function(self):
        function = super().make_train_function()
        self.train_function = lambda iterator: function(iterator)
        return self.train_function


class WrappingOnce(keras.Sequential):
    def make_train_function(self):
        if self.train_function is None:
            function = super().make_train_function()
            self.train_function = lambda iterator: function(iterator)
        return self.train_function


def train(scope, make_model, **arguments):
    keras.utils.set_random_seed(1)
    with scope:
        model = make_model([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    given = {"batch_size": 4, "verbose": 1, **arguments}
    histories = [model.fit(X, Y, epochs=2, **given).history for _ in range(2)]
    return model, [*histories, model.evaluate(X, Y, return_dict=True, batch_size=4, verbose=0)]


def test_one_device_trains_with_a_step_of_the_users_own():
    model, numbers = train(strategies.get("one device").scope(), OwnTraining)
    expected_model, expected = train(contextlib.nullcontext(), OwnTraining)

    assert repr(numbers) == repr(expected)
    assert model.num_traces == expected_model.num_traces


@on_two_replicas
def test_several_replicas_say_that_none_gets_its_part(strategy):
    with pytest.raises(RuntimeError, match=r"'.*' overrides `make_train_.*Override `train_step`"):
        train(strategy.scope(), OwnTraining)


def test_a_callback_that_has_no_part_in_the_update_is_refused():
    scope = strategies.get("one device").scope()

    with pytest.raises(RuntimeError, match=r"`make_train_function` .* GradientClipping would take"):
        train(scope, OwnTraining, callbacks=[callbacks.GradientClipping(norm=1.0)])


@pytest.mark.parametrize("make_model", [OwnEvaluation, Wrapping])
@each_strategy
def test_overrides_that_need_no_replicas_give_the_numbers_of_plain_keras(strategy, make_model):
    model, numbers = train(strategy.scope(), make_model)
    expected_model, expected = train(contextlib.nullcontext(), make_model)

    for one, other in zip(numbers, expected, strict=True):
        assert list(one) == list(other)
        np.testing.assert_allclose(list(one.values()), list(other.values()), atol=1e-5)
    assert getattr(model, "num_calls", 0) == getattr(expected_model, "num_calls", 0)


@pytest.mark.parametrize("make_model", [Wrapping, WrappingWithoutForce, WrappingOnce])
def test_a_step_that_wraps_ours_hears_of_the_callbacks_of_the_next_fit(make_model):
    throughput = callbacks.Throughput(every_steps=1)
    model, _ = train(strategies.get("one device").scope(), make_model)

    history = model.fit(X, Y, batch_size=2, verbose=0, callbacks=[throughput]).history

    assert history["examples_per_second"][0] > 0


@pytest.mark.parametrize("make_model", [keras.Sequential, Wrapping])
def test_a_model_that_nobody_has_any_more_is_gone(make_model):
    model, _ = train(strategies.get("one device").scope(), make_model)
    of_model = weakref.ref(model)
    del model
    gc.collect()

    assert of_model() is None


def test_an_evaluation_inside_fit_adapts_nothing_again():
    class Look(keras.callbacks.Callback):
        methods: tuple = ()

        def on_test_begin(self, logs=None):
            self.methods += (vars(self.model)["make_test_function"].args[0],)

    look = Look()
    train(
        strategies.get("one device").scope(),
        OwnEvaluation,
        validation_data=(X, Y),
        callbacks=[look],
    )

    assert [method.__func__ for method in look.methods] == [OwnEvaluation.make_test_function] * 4


def test_parameter_servers_are_told_how_many_workers_get_no_part():
    jobs = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"], "ps": ["e:1"]}
    cluster = Cluster(jobs=jobs, task=Task("chief", 0))
    strategy = strategies.spanning(cluster, has_remote_variables=True)
    model: Any = types.SimpleNamespace(name="m", distribute_strategy=strategy)

    with pytest.raises(RuntimeError, match="so that no worker of 3 gets its part"):
        custom_functions._check(model, "train", ())
