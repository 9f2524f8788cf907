"""Outputs of layers, seen while a model runs, and the names of layers."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training.hooks import layer_outputs

X = np.ones((2, 3), "float32")


def make_model():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="last")], name="inside")
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4, name="first"), inner], name="outside"
    )


def test_layers_of_models_inside_have_names_too():
    assert list(layer_outputs.by_name(make_model())) == ["first", "last"]


def test_two_layers_of_one_name_are_told_apart():
    inputs = keras.Input((3,))
    layers = [keras.layers.Dense(3, name="same") for _ in range(2)]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="same")])
    outer = keras.Model(inputs, model(layers[0](inputs)))

    assert list(layer_outputs.by_name(outer)) == ["same", "same#2"]


def test_what_layers_give_is_seen_inside_alone():
    model = make_model()
    layer = layer_outputs.by_name(model)["first"]
    seen = []

    with layer_outputs.watched([layer], lambda *each: seen.append(each)):
        model(X)
    model(X)

    ((noted, output),) = seen
    assert noted is layer
    np.testing.assert_allclose(output, X @ layer.kernel.numpy() + layer.bias.numpy(), rtol=1e-6)
    assert "call" not in vars(layer)


def test_the_first_number_among_what_a_layer_gives():
    number = tf.constant([1.0])

    assert layer_outputs.first_number_of({"a": tf.constant([1]), "b": number}) is number
    assert layer_outputs.first_number_of(tf.constant(["word"])) is None


def test_tensors_of_another_graph_cannot_be_used():
    kept = []
    tf.function(lambda: kept.append(tf.ones([])), autograph=False)()
    (other,) = kept

    @tf.function(autograph=False)
    def look():
        own = tf.ones([])
        assert layer_outputs.is_reachable(own)
        assert not layer_outputs.is_reachable(other)
        tf.cond(
            tf.constant(True), lambda: kept.append(layer_outputs.is_reachable(own)), lambda: None
        )

    look()
    assert kept[1:] == [True]
