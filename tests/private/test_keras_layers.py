"""The private names of layers are where they were, and do what they did."""

import keras
import tensorflow as tf

from kerasdist.private import keras_layers, keras_losses, keras_optimizers


def test_layers_have_the_names_that_are_used():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4, 3))

    assert keras_layers.reduction_axes(layer) == [0, 1]
    assert keras_losses.losses_added_by(layer) == []
    assert keras_layers.layers_of(keras.Sequential([layer]))[1:] == [layer]


def test_batch_normalizations_are_found_in_nested_models():
    inner = keras.layers.BatchNormalization()
    model = keras.Sequential([keras.layers.Dense(2), keras.Sequential([inner])])

    assert keras_layers.batch_normalizations_of(model) == [inner]


def test_random_layers_are_found_in_nested_models():
    inner = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.layers.Dense(2), keras.Sequential([inner])])

    assert keras_layers.layers_with_random_numbers_of(model) == [inner]
    assert keras_layers.seed_generators_of(model) == [inner.seed_generator]


def _compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_a_model_is_built_without_its_optimizer():
    model = _compiled()

    keras_layers.build_from_spec(model, (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1))))
    assert not model.optimizer.built

    keras_optimizers.build_optimizer(model)
    assert model.optimizer.built
