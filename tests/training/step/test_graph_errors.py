"""Errors of a step say what is the matter in the user's words."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.support import memory
from kerasdist.training.step import graph_errors, variable_creation
from tests.plain import check_as_plain
from tests.strategies import on_two_replicas
from tests.warned import warned_by

X = np.random.default_rng(0).normal(size=(32, 5, 1)).astype("float32")
Y = X.sum(axis=1)


def make_stateful(batch_size):
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(batch_size, 5, 1)),
            keras.layers.LSTM(4, stateful=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


@on_two_replicas
def test_a_model_for_one_batch_size_says_what_size_it_is_given(strategy):
    def fit(model):
        return model.fit(X[:24], Y[:24], batch_size=12, shuffle=False, verbose=0).history

    (text,) = warned_by(lambda: check_as_plain(strategy, lambda: make_stateful(12), fit))

    assert "is made for batches of 12 examples, and each of 2 replicas is given its part" in text
    assert "Until you change it, each replica computes the whole batch" in text


@on_two_replicas
def test_a_model_for_the_batch_of_a_replica_trains(strategy):
    with strategy.scope():
        model = make_stateful(12 // strategy.num_replicas_in_sync)

    history = model.fit(X[:24], Y[:24], batch_size=12, shuffle=False, verbose=0).history

    assert np.isfinite(history["loss"]).all()


@pytest.mark.filterwarnings("error:Could not check that")
@on_two_replicas
def test_any_other_error_of_such_a_model_is_shown_as_it_is(strategy):
    def broken(y, predictions):
        raise LookupError("of the loss")

    with strategy.scope():
        model = make_stateful(12 // strategy.num_replicas_in_sync)
        model.compile("sgd", broken)

    with pytest.raises(LookupError, match="of the loss"):
        model.fit(X[:24], Y[:24], batch_size=12, verbose=0)


PAIRS = np.random.default_rng(1).normal(size=(2, 6, 3)).astype("float32")


class Pairs(keras.Model):
    """Takes [2, pairs, features]: the first axis does not count examples."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(anchors) - self(positives)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


@on_two_replicas
def test_a_train_step_that_fails_on_a_part_of_the_batch_is_told_of_the_parts(strategy):
    dataset = tf.data.Dataset.from_tensors(PAIRS).repeat(2)

    def make():
        model = Pairs()
        model.compile("sgd")
        return model

    (text,) = warned_by(
        lambda: check_as_plain(
            strategy, make, lambda model: model.fit(dataset, shuffle=False, verbose=0).history
        )
    )
    assert text.startswith("The step fails with a part of the batch, and not with all of it: ")


class FourLargest(keras.Model):
    """Learns from the largest losses; the last batch has too few on a replica."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(self(x) - y), axis=-1)
            loss = tf.reduce_mean(tf.math.top_k(losses, 4).values)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


class SumOfPairs(keras.layers.Layer):
    """Takes [2, pairs, features], too."""

    def call(self, x):
        return x[0] + x[1]


@pytest.mark.filterwarnings("ignore:The gradient over")
@on_two_replicas
def test_a_step_that_fails_on_a_part_of_a_later_batch_is_that_of_one_device(strategy):
    def make():
        inputs = keras.Input((5,))
        model = FourLargest(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd")
        return model

    def fit(model):
        data = X[:14, :, 0], Y[:14]
        return model.fit(*data, batch_size=8, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, fit)


@pytest.mark.filterwarnings("ignore:The tensors of a batch differ")
@on_two_replicas
def test_a_layer_that_fails_on_a_part_of_the_batch_is_that_of_one_device(strategy):
    def make():
        model = keras.Sequential([SumOfPairs(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    dataset = tf.data.Dataset.from_tensors((PAIRS, PAIRS.sum(axis=(0, 2)))).repeat(2)
    check_as_plain(
        strategy, make, lambda model: model.fit(dataset, shuffle=False, verbose=0).history
    )


@on_two_replicas
def test_what_only_shows_when_a_step_runs_is_told_of_the_parts(strategy):
    with strategy.scope():
        model = keras.Sequential([SumOfPairs(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    error = tf.errors.InvalidArgumentError(None, None, "slice index 1 of dimension 0 out of bounds")

    told = graph_errors.of_parts(error, model, model.train_step)

    assert told is error
    assert "divided along the first axis" in error.__notes__[-1]


def test_an_error_in_a_line_is_told_with_its_cause():
    error = tf.errors.InvalidArgumentError(
        None,
        None,
        "Exception encountered when calling G.call().\n\n"
        "\x1b[1m{{function_node __wrapped__GatherV2}} indices[0] = 9 is not in [0, 6) "
        "[Op:GatherV2] name: \x1b[0m\n\nArguments received by G.call():",
    )

    told = graph_errors.in_a_line(error)

    assert told == "InvalidArgumentError: indices[0] = 9 is not in [0, 6)"
    told = graph_errors.in_a_line(AssertionError("len(v) == 1, len(v0) == 4, v: [<tf.Tensor"))
    assert told.startswith("one replica sends gradients or other numbers where another one")


def test_a_check_that_fails_says_how_to_compare():
    told = graph_errors.describe_unchecked("2 replicas agree", ValueError("No such thing.\n  at"))

    assert told.startswith("Could not check that 2 replicas agree: ValueError: No such thing. The")
    assert told.endswith("SCRIPT` compares some steps with those of one device.")


OWN_ERRORS = [
    TypeError("Input 'y' of 'Equal' Op has type int64 that does not match type int32"),
    ValueError("too many values to unpack (expected 2)"),
    AttributeError("'M' object has no attribute 'shape_of'"),
]


@pytest.mark.filterwarnings("error")  # It says all that there is to say.
@on_two_replicas
def test_an_error_that_shapes_are_not_the_reason_of_is_told_of_no_parts(strategy):
    class Fails(keras.Model):
        def train_step(self, data):
            raise error

    for error in OWN_ERRORS:
        with strategy.scope():
            model = Fails()
            model.compile("sgd")
        with pytest.raises(type(error)) as caught:
            model.fit(X[:12], Y[:12], verbose=0)
        assert caught.value is error
        assert not hasattr(error, "__notes__")


def test_after_workers_that_differ_any_error_is_theirs(monkeypatch):
    differ = variable_creation.WorkersDifferError("The workers do not build the same model.")
    monkeypatch.setattr(memory.PROCESS, "workers_differ", differ)

    nothing: Any = None
    assert graph_errors.of_parts(AttributeError("of another thing"), nothing, nothing) is differ


class UpdatesSometimes(keras.Model):
    """Computes its gradients inside a condition, and applies them there."""

    def train_step(self, data):
        x, y = data

        def update():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return loss

        return {"loss": tf.cond(self.optimizer.iterations < 100, update, lambda: 0.0)}


class UpdatesWithLoss(keras.Model):
    """Applies its gradients where its loss is not too large."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        tf.cond(
            self.of_all(loss) < 100,
            lambda: self.optimizer.apply(gradients, variables),
            lambda: None,
        )
        return {"loss": loss}

    def of_all(self, loss):
        return loss


class UpdatesWithLossOfAll(UpdatesWithLoss):
    def of_all(self, loss):
        return kerasdist.global_mean(loss[tf.newaxis])


@on_two_replicas
@pytest.mark.parametrize(
    ("model_class", "words"),
    [
        (UpdatesSometimes, r"inside a `tf\.cond`, a loop.*GradientAccumulation"),
        (UpdatesWithLoss, r"under a condition that each replica computes"),
        (UpdatesWithLossOfAll, None),
    ],
)
def test_an_update_inside_a_condition_is_that_of_one_device(strategy, model_class, words):
    def make():
        inputs = keras.Input((3,))
        model = model_class(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd")
        model.optimizer.build(model.trainable_variables)
        return model

    def fit(model):
        return model.fit(X[:12, :3, 0], Y[:12], batch_size=6, shuffle=False, verbose=0).history

    texts = warned_by(lambda: check_as_plain(strategy, make, fit))

    assert [bool(re.search(words or "", text)) for text in texts] == [True] * bool(words)
