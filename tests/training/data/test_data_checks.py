"""What cannot give a right number is named."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.training.data import data_checks
from tests import strategies
from tests.strategies import (
    each_kind_of_strategy,
    each_strategy,
    on_three_replicas,
    on_two_replicas,
)

X = np.random.default_rng(5).normal(size=(32, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def with_nan(values):
    values = values.copy()
    values[5] = np.nan
    return values


def make_model(strategy, loss="mse", **compile_arguments):
    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="model")
        model.compile(keras.optimizers.SGD(0.05), loss, **compile_arguments)
    return model


def fit(model, y=Y, **arguments):
    return model.fit(X, y, batch_size=16, shuffle=False, verbose=0, **arguments)


def check_nothing_was_trained(model, initial):
    assert int(model.optimizer.iterations.numpy()) == 0
    for value, initial_value in zip(model.get_weights(), initial, strict=True):
        assert np.array_equal(value, initial_value)


@each_strategy
@pytest.mark.parametrize(
    ("y", "sample_weight", "name"),
    [(with_nan(Y), None, "labels"), (Y, with_nan(np.ones(32, "float32")), "sample weights")],
    ids=["labels", "sample weights"],
)
def test_nan_is_named_and_trains_as_plain_keras_does(strategy, y, sample_weight, name):
    model, truth = make_model(strategy), make_model(tf.distribute.get_strategy())

    with pytest.warns(UserWarning, match=rf"The {name} of the first batch hold NaN.*take\(1\)"):
        history = fit(model, y, sample_weight=sample_weight).history
    expected = fit(truth, y, sample_weight=sample_weight).history

    np.testing.assert_allclose(history["loss"], expected["loss"], atol=1e-5)
    for ours, theirs in zip(model.get_weights(), truth.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@each_kind_of_strategy
@pytest.mark.parametrize("arguments", [{"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_nan_is_named_however_steps_run(strategy, arguments):
    if "run_eagerly" in arguments:
        tf.get_logger().setLevel("ERROR")

    with pytest.warns(UserWarning, match="labels of the first batch hold NaN"):
        fit(make_model(strategy, **arguments), with_nan(Y))


@each_kind_of_strategy
def test_nan_ends_the_training_where_the_user_asks_for_it(strategy):
    model = make_model(strategy)

    with pytest.warns(UserWarning, match="hold NaN"):
        history = fit(model, with_nan(Y), callbacks=[keras.callbacks.TerminateOnNaN()], epochs=5)

    assert len(history.history["loss"]) == 1


@each_kind_of_strategy
def test_good_data_is_not_named(strategy):
    model = make_model(strategy)
    with pytest.warns(UserWarning, match="hold NaN"):
        fit(model, with_nan(Y))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model)


@on_three_replicas
def test_a_loss_of_the_users_own_may_give_nan_a_meaning(strategy):
    def loss(y, predictions):
        return tf.square(tf.where(tf.math.is_nan(y), predictions, y) - predictions)

    model, truth = make_model(strategy, loss), make_model(tf.distribute.get_strategy(), loss)

    fit(model, with_nan(Y))
    fit(truth, with_nan(Y))

    np.testing.assert_allclose(model.get_weights()[0], truth.get_weights()[0], atol=1e-5)


class EachColumn(keras.metrics.Metric):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.total = self.add_weight(shape=(3,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.ones([3]))

    def result(self):
        return self.total


@on_two_replicas
def test_a_metric_that_is_no_scalar_is_named_before_a_weight_changes(strategy):
    with strategy.scope():
        metric = EachColumn(name="each_column")
    model = make_model(strategy, metrics=[metric])
    initial = model.get_weights()

    with pytest.raises(ValueError, match=r"Metric 'each_column' returned shape \(3,\)"):
        fit(model)

    check_nothing_was_trained(model, initial)


@each_kind_of_strategy
def test_metrics_of_keras_may_return_a_value_for_each_class(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])

    history = model.fit(np.ones((8, 2)), np.eye(3)[[0, 1, 2, 0] * 2], verbose=0).history

    assert np.shape(history["f1_score"]) == (1, 3)


@each_kind_of_strategy
def test_nan_is_named_for_losses_given_as_keras_functions(strategy):
    model = make_model(strategy, keras.losses.mean_squared_error)

    with pytest.warns(UserWarning, match="labels of the first batch hold NaN"):
        fit(model, with_nan(Y))


@each_kind_of_strategy
def test_every_evaluation_looks_at_its_first_batch(strategy):
    model = make_model(strategy)
    model.evaluate(X, Y, verbose=0)

    with pytest.warns(UserWarning, match="labels of the first batch hold NaN"):
        model.evaluate(X, with_nan(Y), verbose=0)


@pytest.mark.parametrize("index", [0, 1])
def test_the_chief_alone_tells_of_a_data_service_in_mid_epoch(index):
    cluster = Cluster(jobs={"worker": ["a:1", "b:1"]}, task=Task("worker", index))
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()  # Asked when a dataset is read, and not before.
    dataset = tf.data.Dataset.range(9).batch(3)
    served = dataset.apply(service.distribute("parallel_epochs", dispatcher.target))

    with warnings.catch_warnings(record=True, action="always") as warned:
        for data, step in ((dataset, 1), (served, 0), (served, 1)):
            data_checks.warn_of_service(data, strategies.spanning(cluster), step)

    assert len(warned) == (index == 0)
