"""The outputs of `predict` are those of the examples, in their order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.step.predict_function import PredictFunction, joined
from kerasdist.training.trial import predict
from tests import strategies
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import each_strategy, each_with_parameter_servers, on_two_replicas
from tests.warned import warned_by


class Doubled(keras.Model):
    def call(self, inputs):
        return {"doubled": 2 * inputs, "text": tf.strings.as_string(inputs)}


@each_strategy
@pytest.mark.parametrize("sizes", [[1], [5], [5, 4, 1]])
def test_each_example_has_one_output_in_order(strategy, sizes):
    with strategy.scope():
        predicts = PredictFunction(Doubled(), describe_difference=predict.describe_difference)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    outputs = predicts([(part,) for part in parts])

    assert outputs["doubled"].numpy().tolist() == [2 * each for each in range(sum(sizes))]
    assert outputs["text"].numpy().tolist() == [b"%d" % each for each in range(sum(sizes))]


def test_ragged_outputs_are_joined_too():
    parts = [{"x": tf.ragged.constant([[1], [2, 3]])}, {"x": tf.ragged.constant([[4, 5, 6]])}]

    assert joined(*parts)["x"].to_list() == [[1], [2, 3], [4, 5, 6]]


class WithScalars(keras.Model):
    """Also returns a number of the weights, a mean over examples and an integer."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.compile()

    def call(self, inputs):
        outputs = self.dense(inputs)
        temperature = keras.ops.mean(self.dense.kernel)
        return {"y": outputs, "temperature": temperature, "mean": keras.ops.mean(outputs)}

    def predict_step(self, data):
        return super().predict_step(data) | {"version": tf.constant(7)}


def predict_scalars(model) -> dict:
    x = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
    return {
        "several batches": model.predict(x, batch_size=4, verbose=0),
        "one": model.predict(x, verbose=0),
        "more replicas than examples": model.predict(x[:1], verbose=0),
        "on batch": model.predict_on_batch(x),
    }


SEQUENCES = np.random.default_rng(0).normal(size=(20, 4, 2)).astype("float32")


def stateful():
    return keras.Sequential(
        [
            keras.Input(batch_shape=(5, 4, 2)),
            keras.layers.LSTM(4, stateful=True),
            keras.layers.Dense(1),
        ]
    )


def paired():
    inputs = keras.Input(batch_shape=(5, 4, 2))
    pairs = keras.ops.reshape(keras.layers.Dense(2)(inputs), (5, 2, 4))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(pairs)))


@each_strategy
@pytest.mark.parametrize("make", [stateful, *exhaustive(paired)])
def test_a_model_for_one_batch_size_predicts_whole_batches(strategy, make):
    def run(model):
        outputs = [model.predict(SEQUENCES, batch_size=5, verbose=0) for _ in range(2)]
        return [*outputs, model.predict_on_batch(SEQUENCES[:5])]

    texts = warned_by(lambda: check_as_plain(strategy, make, run))

    is_divided = strategy.num_replicas_in_sync > 1
    assert ["one replica predicts each batch" in text for text in texts] == [True] * is_divided


@on_two_replicas
def test_a_program_that_fails_with_the_whole_batch_too_ends_with_its_own_error(strategy):
    with strategy.scope():
        model = stateful()

    for _ in range(2):
        with pytest.raises(ValueError, match="Received batch size: 3"):
            model.predict(SEQUENCES[:6], batch_size=6, verbose=0)


@each_strategy
def test_scalars_are_those_of_each_batch(strategy):
    check_as_plain(strategy, WithScalars, predict_scalars)


@pytest.mark.exhaustive
@each_with_parameter_servers
def test_scalars_are_those_of_each_batch_of_workers(workers):
    strategies.run_on_workers(check_scalars, workers)


def check_scalars(strategy):
    check_as_plain(strategy, WithScalars, predict_scalars)


def test_scalars_of_several_batches_in_a_call_are_stacked():
    parts = [{"x": tf.constant(1.0)}, {"x": tf.constant(2.0)}]

    assert joined(*parts)["x"].numpy().tolist() == [1, 2]


@each_strategy
@pytest.mark.parametrize("is_stock", [False, *exhaustive(True)])
def test_a_distributed_dataset_is_predicted(strategy, is_stock):
    def make():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(3, activation="tanh")(inputs)
        outputs = outputs if is_stock else keras.layers.Lambda(lambda x: 2 * x)(outputs)
        return keras.Model(inputs, outputs)

    def predict(model):
        x = np.linspace(0, 1, 84, dtype="float32").reshape(21, 4)
        dataset = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(8)
        dataset = model.distribute_strategy.experimental_distribute_dataset(dataset)
        return model.predict(dataset, verbose=0)

    check_as_plain(strategy, make, predict)


class Refusing(keras.layers.Layer):
    """Fails for numbers above 1."""

    def call(self, x):
        tf.debugging.assert_less_equal(x, 1.0, message="too large")
        return x


def predict_after_a_failure(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), Refusing(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 1), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        model.predict(2 * x, batch_size=1, verbose=0)
    predictions = model.predict(x, batch_size=1, verbose=0)
    history = model.fit(x, x, batch_size=4, verbose=0).history
    return np.ptp(predictions), np.isfinite(history["loss"]).all()


@each_with_parameter_servers
def test_a_predict_that_fails_is_forgotten(workers):
    assert strategies.run_on_workers(predict_after_a_failure, workers) == [(0.0, True)]
