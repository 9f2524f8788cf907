"""Tensors of a batch that differ in their number of examples are named."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas, on_two_replicas

RNG = np.random.default_rng(0)
TOLD = r"x\[0\] 12, x\[1\] 12, y 6\. .* ragged or padded .* computes the whole batch"
X = RNG.normal(size=(12, 3)).astype("float32")


class MeanOfRows(layers.Layer):
    """Takes the rows of all graphs, [nodes, features], and the graph of each."""

    def call(self, rows, graphs):
        return tf.math.segment_mean(rows, graphs)


def make_graph_model():
    rows, graphs = keras.Input((3,), name="rows"), keras.Input((), dtype="int32", name="graphs")
    model = keras.Model([rows, graphs], layers.Dense(1)(MeanOfRows()(rows, graphs)))
    model.compile("sgd", "mse")
    return model


def dataset_of_unknown_sizes(batch):
    """Returns a dataset that has `batch` twice, and tells how long its axes are of no batch."""
    signature = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), batch
    )
    dataset = tf.data.Dataset.from_generator(lambda: [batch] * 2, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(2))


GRAPHS = ((X, np.repeat(np.arange(6), 2).astype("int32")), X[:6, :1])
WITH_GRAPHS = {
    "fit": lambda model, data: (
        model.fit(data, validation_data=data, shuffle=False, verbose=0).history
    ),
    "evaluate": lambda model, data: model.evaluate(data, verbose=0),
    "train_on_batch": lambda model, data: model.train_on_batch(*next(iter(data))),
    "test_on_batch": lambda model, data: model.test_on_batch(*next(iter(data))),
}


@pytest.mark.parametrize("method", WITH_GRAPHS)
@on_two_replicas
def test_a_step_that_fails_on_their_parts_has_all_of_them_and_says_which_they_are(strategy, method):
    def run(model):
        return WITH_GRAPHS[method](model, dataset_of_unknown_sizes(GRAPHS))

    with pytest.warns(UserWarning, match=TOLD) as caught:
        check_as_plain(strategy, make_graph_model, run)

    assert len(caught) == 1


class SumOfRows(layers.Layer):
    """Takes the rows of six graphs, and the graph of each."""

    def call(self, rows, graphs):
        return tf.math.unsorted_segment_sum(rows, graphs, 6)


@on_two_replicas
def test_where_the_trace_fails_the_first_batch_says_which_they_are(strategy):
    def make():
        rows, graphs = keras.Input((3,)), keras.Input((), dtype="int32")
        model = keras.Model([rows, graphs], layers.Dense(1)(SumOfRows()(rows, graphs)))
        model.compile("sgd", "mse")
        return model

    def fit(model):
        data = dataset_of_unknown_sizes(GRAPHS)
        data = data.map(lambda x, y: (x, tf.ensure_shape(y, (6, 1))))
        return model.fit(data, shuffle=False, verbose=0).history

    with pytest.warns(UserWarning, match=TOLD):
        check_as_plain(strategy, make, fit)


class OfLabeled(keras.Model):
    """Takes examples with labels and without, which Keras' own step trains on in one batch."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        self.add_loss(tf.reduce_mean(tf.square(self.dense(inputs["other"]))))
        return self.dense(inputs["labeled"])


def fit_labeled(model):
    x = {"labeled": X[:6], "other": np.concatenate([X, X])[: 24 - 6]}
    dataset = tf.data.Dataset.from_tensors((x, X[:6, :1])).repeat(3)
    return model.fit(dataset, shuffle=False, verbose=0).history["loss"]


def make_of_labeled():
    model = OfLabeled()
    model.compile("sgd", "mse")
    return model


@pytest.mark.filterwarnings("ignore:The tensors of a batch differ")
@each_strategy
def test_what_can_be_divided_trains_as_in_plain_keras(strategy):
    check_as_plain(strategy, make_of_labeled, fit_labeled)


@on_two_replicas
def test_what_can_be_divided_is_a_warning(strategy):
    with strategy.scope():
        model = make_of_labeled()

    with pytest.warns(UserWarning, match=r"x\['labeled'\] 6, x\['other'\] 18, y 6\."):
        fit_labeled(model)


class WithConstant(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        x, scale = inputs
        return self.dense(x * scale)


@on_three_replicas
@pytest.mark.parametrize("is_static", [False, *exhaustive(True)])
def test_one_row_for_all_examples_is_no_news(strategy, is_static):
    def fit(model):
        batch = (X, np.full((1, 3), 0.5, "float32")), X[:, :1]
        dataset = dataset_of_unknown_sizes(batch)
        if is_static:
            dataset = tf.data.Dataset.from_tensors(batch).repeat(2)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The tensors of a batch")
            return model.fit(dataset, shuffle=False, verbose=0).history["loss"]

    def make():
        model = WithConstant()
        model.compile("sgd", "mse")
        return model

    check_as_plain(strategy, make, fit)


class OfTwoBatches(OfLabeled):
    """Takes a batch with labels and one without, in a step of its own."""

    def train_step(self, data):
        (labeled, labels), other = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.dense(labeled) - labels))
            loss += tf.reduce_mean(tf.square(self.dense(other)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


@pytest.mark.parametrize("num_others", [9, *exhaustive(8)])
@on_two_replicas
@pytest.mark.filterwarnings("ignore:The gradient over 2 replicas")
def test_a_step_of_two_batches_is_that_of_one_device(strategy, num_others):
    def make():
        model = OfTwoBatches()
        model.compile("sgd")
        return model

    def fit(model):
        data = dataset_of_unknown_sizes(((X[:4], X[:4, :1]), X[:num_others]))
        return model.fit(data, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, fit)
