"""What a train_step returns and is no mean over examples is named, before its first step."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.strategies import on_two_replicas
from tests.warned import warned_by

RNG = np.random.default_rng(3)
X = RNG.normal(size=(32, 3)).astype("float32")
Y = RNG.normal(size=(32, 2)).astype("float32")
COUNTER = itertools.count()


class Returns(keras.Model):
    """A model whose train_step returns what `log` makes of it, and results of metrics."""

    def __init__(self, *args, log, reduce=tf.reduce_mean):
        super().__init__(*args)
        self.log, self.reduce = log, reduce
        self.error = keras.metrics.RootMeanSquaredError(name="error")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.square(self(x, training=True) - y)
            loss = self.reduce(errors)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.error.update_state(y, y + errors)
        results = {"error": self.error.result(), "also_error": self.error.result()}
        return {"loss": loss, **results, **self.log(self, errors, gradients)}


def warnings_of_fit(strategy, log, **arguments) -> list[str]:
    keras.utils.set_random_seed(1)  # The largest may be the same by chance.
    with strategy.scope():
        inputs = keras.Input((3,))
        model = Returns(inputs, keras.layers.Dense(2)(inputs), log=log, **arguments)
        model.compile("sgd")
    return warned_by(lambda: model.fit(X, Y, batch_size=16, shuffle=False, verbose=0))


def no_means(model, errors, gradients):
    return {
        "norm": tf.norm(errors),
        "parts": {"largest": tf.reduce_max(errors), "mean": tf.reduce_mean(errors)},
        "size": tf.shape(errors)[0],
        "spread": tf.math.reduce_std(errors, axis=0),
    }


@on_two_replicas
def test_what_is_no_mean_is_named_with_the_remedy(strategy):
    (message,) = warnings_of_fit(strategy, no_means)

    assert "as 'norm', 'largest', 'size', 'spread' is not" in message
    assert "tf.sqrt(kerasdist.global_mean(errors**2))" in message


def means(model, errors, gradients):
    return {
        "by_output": tf.reduce_mean(errors, axis=0),
        "count": kerasdist.global_sum(tf.ones_like(errors[:, 0])),
        "drawn": keras.random.uniform(()),
        "iterations": model.optimizer.iterations,
        "norm": tf.linalg.global_norm(gradients),  # Of the whole batch.
        "number": next(COUNTER),
        "rate": model.optimizer.learning_rate,
        "root": tf.sqrt(kerasdist.global_mean(errors)),
        "none": np.nan,
    }


@on_two_replicas
def test_means_and_constants_and_results_of_metrics_are_no_news(strategy):
    assert warnings_of_fit(strategy, means) == []


@on_two_replicas
def test_where_the_gradient_differs_it_alone_is_named(strategy):
    (message,) = warnings_of_fit(strategy, no_means, reduce=tf.reduce_sum)

    assert "The gradient over" in message


@on_two_replicas
def test_a_value_for_each_example_is_named(strategy):
    def rows(model, errors, gradients):
        return {"all": errors[:, 0]}

    warn = functools.partial(warnings_of_fit, strategy, rows)
    if strategy.num_replicas_in_sync == 2:  # Parts of equal sizes, which add up.
        assert "returns 'all' in the shape of a value for each example" in warn()[0]
    else:
        with pytest.raises(ValueError, match=r"Return the mean of 'all'"):
            warn()
