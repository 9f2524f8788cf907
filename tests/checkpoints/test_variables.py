"""What a step changes, besides weights and optimizers, is saved and comes back."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.checkpoints import variables
from tests import strategies
from tests.strategies import each_kind_of_strategy


class Drawing(keras.Model):
    """A model that keeps what it likes in variables of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.alias = None
        self.queue = {"rows": [tf.Variable(tf.zeros([3]), trainable=False)]}
        self.word = tf.Variable("any")  # No file holds it without pickle.
        self.generator = tf.random.Generator.from_seed(2**40)

    def call(self, x):
        if self.alias is None:
            self.dense(x)
            self.alias = self.dense.kernel.value
        return self.dense(x)

    def train_step(self, data):
        rows = self.queue["rows"][0]
        rows.assign(rows + self.generator.normal([3]))
        return super().train_step(data)


def trained(strategy, num_steps):
    with strategy.scope():
        model = Drawing()
        model.compile("sgd", "mse")
    x = np.ones([8 * num_steps, 2])
    model.fit(x, x[:, :1], batch_size=8, verbose=0)
    return model


def recurrent(strategy):
    with strategy.scope():
        inputs = keras.Input(batch_shape=(8 // strategy.num_replicas_in_sync, 3, 2))
        cells = [keras.layers.LSTMCell(2), keras.layers.LSTMCell(3)]
        x = keras.layers.GRU(3, stateful=True, return_sequences=True)(inputs)
        return keras.Model(inputs, keras.layers.RNN(cells, stateful=True)(x))


def read(strategy, model) -> dict:
    arrays = variables.read(strategy, variables.variables_of(model))
    return {name: each for name, each in arrays.items() if name.startswith(("own/", "state/"))}


@pytest.mark.filterwarnings("ignore:What a step assigns to the state 'queue'")
@each_kind_of_strategy
def test_variables_of_the_users_own_come_back_on_each_replica(strategy):
    first, second = (trained(strategy, num_steps) for num_steps in (1, 2))
    expected = read(strategy, first)

    variables.write(strategy, variables.variables_of(second), expected)

    # Numbers that each replica drew for itself differ, and the states of the generator do not.
    is_one = strategy.num_replicas_in_sync == 1
    suffix = "" if is_one else "@replicas"
    assert expected.keys() == {f"own/0.queue.0{suffix}", "own/0.generator.0"}
    assert all(each.dtype != object for each in expected.values())
    keras.tree.map_structure(np.testing.assert_array_equal, read(strategy, second), expected)
    last, truth = (
        strategy.experimental_local_results(each.generator.state)[-1] for each in (second, first)
    )
    np.testing.assert_array_equal(last, truth)


@pytest.mark.parametrize("names", [("one device", "2 replicas"), ("2 replicas", "one device")])
def test_states_of_recurrent_layers_are_divided_as_the_batch_is(names):
    source, target = map(strategies.get, names)
    expected = {
        name: np.random.default_rng(0).normal(size=each.shape)
        for name, each in read(source, recurrent(source)).items()
    }
    model = recurrent(target)

    variables.write(target, variables.variables_of(model), expected)

    found = read(target, model)
    assert len(found) == 5
    for ours, theirs in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(ours.ravel(), theirs.ravel(), rtol=1e-6)


def test_what_cannot_be_restored_is_told():
    strategy: Any = strategies.get("one device")
    model = trained(strategy, 1)
    named = variables.variables_of(model)
    name = next(name for name in named if "queue" in name)

    with pytest.warns(UserWarning, match=r"queue.* has the shape \(4,\) in .* and \(3,\) now"):
        variables.write(strategy, named, {name: np.zeros(4)})

    assert variables.missing_in({name: np.zeros(3)}, model) == ["'generator'"]
