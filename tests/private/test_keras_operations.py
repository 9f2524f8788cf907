"""What may mix the examples of a batch is told from what works on each by itself."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from kerasdist.private import keras_operations
from tests.cases import exhaustive
from tests.strategies import on_two_replicas

MIXING = {
    "Softmax": lambda x: layers.Softmax(axis=0)(x),
    "Softmax from the end": lambda x: layers.Softmax(axis=-3)(x),
    "Softmax over two axes": lambda x: layers.Softmax(axis=(0, 1))(x),
    "Softmax over all": lambda x: layers.Softmax(axis=None)(x),
    "UnitNormalization": lambda x: layers.UnitNormalization(axis=0)(x),
    "inside TimeDistributed": lambda x: layers.TimeDistributed(layers.Softmax(axis=0))(x),
    "Concatenate": lambda x: layers.Concatenate(axis=0)([x, x]),
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(2, 2, attention_axes=0)(x, x),
    "AdditiveAttention": lambda x: layers.AdditiveAttention()([x[:, 0], x[:, 0]]),
    "MixUp": lambda x: layers.MixUp()(ops.expand_dims(x, -1)),
    "CutMix": lambda x: layers.CutMix()(ops.expand_dims(x, -1)),
    "nested": lambda x: keras.Sequential([layers.Softmax(axis=0)])(x),
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "mean from the end": lambda x: x - ops.mean(x, axis=-3, keepdims=True),
    "mean of all": lambda x: x - ops.mean(x),
    "reshape": lambda x: ops.reshape(ops.reshape(x, (1, -1, 4)), (-1, 2, 4)),
    "fewer examples": lambda x: ops.reshape(x, (-1, 4, 4)),
    "matmul": lambda x: ops.matmul(x[:, 0], ops.transpose(x[:, 0])),
    "two ranks": lambda x: x + x[:, 0],
    "some examples": lambda x: x[..., 1:, :, :],
    "roll": lambda x: ops.roll(x, 1, axis=0),
    "outer": lambda x: ops.outer(x[:, 0], x[:, 0]),
    "segment_sum": lambda x: ops.segment_sum(x, ops.cast(x[:, 0, 0], "int32"), 3),
    "einsum": lambda x: ops.einsum("abc,dbc->adb", x, x),
}
APART = {
    "normalizations": lambda x: layers.LayerNormalization()(layers.GroupNormalization(2)(x)),
    "BatchNormalization": lambda x: layers.BatchNormalization(axis=1)(x),
    "Normalization": lambda x: layers.Normalization(axis=None, mean=0.0, variance=1.0)(x),
    "merging": lambda x: layers.Dot(axes=(2, 2))([x, layers.Concatenate(axis=-2)([x, x])]),
    "attention": lambda x: layers.MultiHeadAttention(2, 2)(x, layers.Attention()([x, x])),
    "recurrence": lambda x: layers.Bidirectional(layers.LSTM(3, return_state=True))(x)[0],
    "TimeDistributed": lambda x: layers.TimeDistributed(layers.LayerNormalization())(x),
    "Softmax": lambda x: layers.Softmax()(layers.Activation("softmax")(x)),
    "Flatten": lambda x: layers.Reshape((4, 2))(layers.Flatten()(x)),
    "arithmetic": lambda x: 2 * x - ops.relu(x) / (1 + x**2) + ops.where(x > 0, x, 0.0),
    "items": lambda x: ops.stack([x[:, 0], x[..., -1, :], x[:, 0, :]], axis=1),
    "reductions": lambda x: (
        x - ops.mean(x, axis=(1, -1), keepdims=True) - ops.max(x, axis=1)[:, None]
    ),
    "new axes": lambda x: ops.squeeze(ops.expand_dims(x, -3), 1) + ops.split(x, 1, axis=-1)[0],
    "reshape": lambda x: ops.transpose(ops.reshape(x, (-1, 2, 2, 2)), (0, 3, 1, 2)),
    "matmul": lambda x: ops.matmul(x, ops.matmul(ops.transpose(x, (0, 2, 1)), x)),
    "by a matrix": lambda x: ops.matmul(x[:, 0], ops.ones((4, 2))),
}


def may_mix(function) -> bool:
    inputs = keras.Input((2, 4))
    model = keras.Model(inputs, function(inputs))
    return any(keras_operations.may_mix_examples(layer) for layer in model._flatten_layers())


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING)
def test_what_may_mix_examples_is_seen(function):
    assert may_mix(function)


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_what_takes_each_example_by_itself_is_left_alone(function):
    assert not may_mix(function)


def test_layers_that_are_not_built_are_told_by_their_axes():
    normalization = layers.LayerNormalization()

    assert not keras_operations.may_mix_examples(keras.Sequential([normalization]))
    assert not keras_operations.may_mix_examples(normalization)
    assert keras_operations.may_mix_examples(layers.Softmax(axis=(-2, -1)))


def test_operations_of_the_users_may_do_anything():
    class Add(keras.Operation):
        def call(self, x):
            return x

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

    assert may_mix(Add())


@on_two_replicas
@pytest.mark.parametrize("name", ["reshape to attention", *exhaustive("Softmax")])
def test_what_may_mix_examples_is_looked_at_before_the_first_step(strategy, name):
    def mix(hidden):
        if name == "Softmax":
            return layers.Softmax(axis=0)(hidden)
        hidden = ops.reshape(hidden, (1, -1, 4))
        return ops.reshape(layers.MultiHeadAttention(2, 4)(hidden, hidden), (-1, 4))

    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, layers.Dense(2)(mix(layers.Dense(4, "tanh")(inputs))))
        model.compile("sgd", "mse")

    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    with pytest.warns(UserWarning, match="not the one .* compares those of one replica"):
        model.fit(x, x[:, :2], verbose=0)
