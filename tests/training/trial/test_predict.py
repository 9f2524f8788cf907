"""Where the outputs of replicas, joined, are not those of one device, one of them predicts all."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kerasdist
from kerasdist.private import trial_adapter
from tests.cases import marked
from tests.plain import check_as_plain
from tests.strategies import (
    each_strategy,
    on_three_replicas,
    on_two_replicas,
    run_on_workers,
)
from tests.warned import warned_by

X = np.random.default_rng(5).normal(size=(28, 6)).astype("float32")


class Deviates(layers.Layer):
    """Adds a column with the deviation of the batch."""

    def call(self, x):
        return ops.concatenate([x, ops.full_like(x[:, :1], ops.mean(ops.std(x, axis=0)))], axis=-1)


class Predicts(keras.Model):
    """Returns what a function makes of a dense layer and its outputs."""

    def __init__(self, make):
        super().__init__(name="predicts")
        self.dense, self.make = layers.Dense(3), make

    def call(self, x):
        return self.dense(x)

    def predict_step(self, data):
        return self.make(self.dense, super().predict_step(data))


OF_THE_BATCH = {
    "weights too": lambda dense, y: (y, dense.kernel),
    "in another order": lambda dense, y: ops.concatenate([y, -y], axis=0),
    "columns": lambda dense, y: ops.transpose(y),
    "all pairs": lambda dense, y: ops.matmul(y, ops.transpose(y)),
    "the largest": lambda dense, y: {"y": y, "largest": ops.max(y)},
    "how many": lambda dense, y: {"y": y, "size": ops.shape(y)[0]},
    "ranks": lambda dense, y: ops.argsort(ops.argsort(y[:, 0])),
    "mixed": lambda dense, y: Deviates()(y),
    "random pairs": lambda dense, y: y + keras.random.shuffle(y, seed=3),
    "with gaps": lambda dense, y: ops.log(ops.relu(y - ops.mean(y))),
}
# One more shape, or one more number.
LIKE_OTHERS = {"weights too", "columns", "the largest", "ranks"}


def of_examples(dense, y):
    return {
        "rows": y,
        "two for each": ops.repeat(y, 2, axis=0),
        "some": tf.boolean_mask(y, y[:, 0] > 0),
        "ragged": tf.ragged.boolean_mask(y, y > 0),
        "text": tf.strings.as_string(ops.argmax(y, axis=-1)),
        "with gaps": ops.log(ops.relu(y)),
        "mean": ops.mean(y),
        "of weights": ops.sum(dense.kernel),
    }


def predict_all(model):
    # On three replicas the smaller batches are 3, 3, 1 and 1, 0, 0.
    outputs = [model.predict(X, batch_size=size, verbose=0) for size in (1, 7, 28)]
    arrays = map(np.asarray, tf.nest.flatten(outputs, expand_composites=True))
    return [array.astype("float32") if array.dtype == object else array for array in arrays]


@pytest.mark.parametrize("name", marked(OF_THE_BATCH, exhaustive=LIKE_OTHERS))
@on_three_replicas
def test_what_is_not_of_each_example_is_predicted_by_one_replica(strategy, name):
    with pytest.warns(UserWarning, match=r"What 'predicts' predicts .* So one replica predicts"):
        check_as_plain(strategy, lambda: Predicts(OF_THE_BATCH[name]), predict_all)


@each_strategy
def test_what_is_of_each_example_is_that_of_one_device(strategy):
    check_as_plain(strategy, lambda: Predicts(of_examples), predict_all)


def warnings_of_predict(strategy, make) -> list[str]:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
    return warned_by(lambda: [model.predict(X, batch_size=7, verbose=0) for _ in range(2)])


@on_two_replicas
def test_what_is_of_each_example_is_no_news(strategy):
    def make(dense, y):
        noise = keras.random.normal(ops.shape(y)), tf.random.uniform(())
        return of_examples(dense, y) | {"noise": y + noise[0] + noise[1], "drawn": noise[1]}

    assert warnings_of_predict(strategy, lambda: Predicts(make)) == []


@on_two_replicas
def test_layers_that_mix_examples_are_looked_at(strategy):
    def make():
        return keras.Sequential([keras.Input((6,)), Deviates(), layers.Dense(3)], name="mixes")

    (message,) = warnings_of_predict(strategy, make)
    assert "'mixes' predicts is not what one device does" in message


@on_two_replicas
def test_models_of_stock_parts_are_not_tried(strategy, monkeypatch):
    monkeypatch.delattr(trial_adapter, "alike_draws")

    def make():
        return keras.Sequential([layers.Dense(3), layers.BatchNormalization(), layers.Softmax()])

    assert warnings_of_predict(strategy, make) == []


class Counts(Predicts):
    """Counts its calls."""

    def __init__(self):
        super().__init__(lambda dense, y: (y, dense.kernel + 0.0))
        self.num_calls = tf.Variable(0, trainable=False)

    def predict_step(self, data):
        self.num_calls.assign_add(1)
        return super().predict_step(data)


@pytest.mark.filterwarnings("ignore:What 'predicts' predicts")
@on_three_replicas
def test_it_leaves_no_trace(strategy):
    def predict(model):
        return model.predict(X, batch_size=7, verbose=0), int(tf.convert_to_tensor(model.num_calls))

    check_as_plain(strategy, Counts, predict)


@on_two_replicas
def test_what_cannot_be_tried_is_said(strategy):
    def demanding(dense, y):
        if tf.executing_eagerly():
            raise NotImplementedError("no operation by itself")
        return y

    (message,) = warnings_of_predict(strategy, lambda: Predicts(demanding))
    assert "predict what one device does: NotImplementedError: no operation by itself" in message


@pytest.mark.processes
def test_a_worker_of_several_replicas_decides_alone():
    assert run_on_workers(count_warnings, "2 workers x 2 clones") == [1, 1]


def count_warnings(strategy) -> int:
    """Returns how often a worker is told; the chief predicts once more than the other one."""

    def predict(model):
        return [predict_all(model) for _ in range(1 + kerasdist.is_chief())]

    texts = warned_by(
        lambda: check_as_plain(strategy, lambda: Predicts(OF_THE_BATCH["weights too"]), predict)
    )
    return sum("one replica predicts each batch" in text for text in texts)


class OfSixteen(keras.layers.Layer):
    def call(self, x):
        return tf.ensure_shape(x, (16, 3)) + 0


@on_two_replicas
def test_a_check_that_fails_is_not_told_where_the_parts_fail_as_well(strategy):
    """With a few of its examples the model ends in an error, and with a part of them."""
    with strategy.scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, OfSixteen()(inputs))

    (message,) = warned_by(lambda: model.predict(np.ones((16, 3), "float32"), verbose=0))

    assert "one replica predicts each batch" in message
