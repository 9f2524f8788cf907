"""The logs of a step: means over the examples, and numbers when somebody reads them."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.hooks.update_callback import StepCallback
from kerasdist.training.step.step_logs import StepLogs, mean_over_examples
from tests import strategies
from tests.strategies import each_kind_of_strategy


class Double(StepCallback):
    def change_logs(self, logs):
        return {name: 2 * value for name, value in logs.items()}


def make_logs(strategy, **arguments):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return StepLogs(model, returns_metrics=False, **arguments)


def test_replicas_count_by_their_examples_and_one_without_any_for_nothing():
    replicas = [{"loss": 1.0, "parts": {"a": 2}}, {"loss": 4.0, "parts": {"a": 5}}]
    nothing = {"loss": np.nan, "parts": {"a": 0}}

    logs = mean_over_examples([*replicas, nothing], [2 / 3, 1 / 3, 0.0])

    np.testing.assert_allclose(logs["loss"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(logs["parts"]["a"], 3.0, rtol=1e-6)


def test_the_only_replica_of_a_worker_counts_by_its_share():
    logs = mean_over_examples([{"loss": 3.0}], [0.5])

    assert float(logs["loss"]) == 1.5


def test_what_has_another_shape_on_another_replica_is_named():
    replicas = [{"loss": 1.0, "parts": {"all": tf.ones([number])}} for number in (3, 2)]

    with pytest.raises(ValueError, match=r"'all' in the shape .*: \(3,\) and \(2,\)"):
        mean_over_examples(replicas, [0.6, 0.4])


@pytest.mark.processes
def test_what_has_another_shape_on_another_worker_is_named():
    for text in strategies.run_on_workers(_error_of_rows, "2 workers"):
        assert "returns 'all' in the shape of a value for each example: (3,) and (2,)" in text


class Rows(keras.Model):
    def train_step(self, data):
        super().train_step(data)
        return {"all": data[0][:, 0]}


def _error_of_rows(strategy):
    with strategy.scope():
        inputs = keras.Input((1,))
        model = Rows(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    warnings.simplefilter("ignore")
    try:
        model.fit(np.ones((5, 1)), np.ones((5, 1)), batch_size=5, verbose=0)
    except ValueError as error:
        return str(error)


@each_kind_of_strategy
def test_the_logs_of_the_last_step_are_read(strategy):
    logs = make_logs(strategy)

    for value in (1.0, 3.0):
        logs.keep(logs.own_of([{"own": tf.constant(value)}], [1.0]))

    assert logs.read() == logs.read_of_worker() == {"own": 3.0}


@each_kind_of_strategy
def test_names_in_dicts_in_the_logs_are_told_once_they_are_read(strategy):
    logs = make_logs(strategy)
    assert logs.nesting == {}

    logs.keep(logs.own_of([{"loss": tf.constant(1.0), "parts": {"a": tf.constant(2.0)}}], [1.0]))
    logs.read()

    assert logs.nesting == {"loss": None, "parts": {"a": None}}


@each_kind_of_strategy
def test_callbacks_change_what_is_read(strategy):
    logs = make_logs(strategy, callbacks=(Double(), Double()))

    logs.keep(logs.own_of([{"own": tf.constant(1.5)}], [1.0]))

    assert logs.read() == {"own": 6.0}


class Scores(keras.Model):
    """A model that returns a number of unknown rank: one that numpy has computed."""

    def train_step(self, data):
        score = tf.numpy_function(lambda x: np.float32(x.mean()), [data[0]], tf.float32)
        return super().train_step(data) | {"score": score}


@each_kind_of_strategy
def test_a_log_of_unknown_rank_is_a_number(strategy):
    with strategy.scope():
        inputs = keras.Input((1,))
        model = Scores(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    x = np.arange(8.0).reshape(8, 1)

    history = model.fit(x, x, batch_size=8, shuffle=False, verbose=0).history

    assert history["score"] == [3.5]
