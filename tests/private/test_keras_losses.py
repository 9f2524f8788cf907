"""The private names of losses and masks are where they were, and do what they did."""

import types

import keras
import pytest
import tensorflow as tf

from kerasdist.private import custom_parts, keras_losses, names


def test_a_sum_over_the_batch_is_told_from_what_a_layer_adds_itself():
    seen = []

    def ask(layer, loss):
        seen.append(keras_losses.is_sum_over_batch(layer))

    # As the route, which stands in a module of kerasdist, whatever its own frames are.
    names_there = {**globals(), "__name__": "kerasdist.training.routes"}
    route = types.FunctionType(ask.__code__, names_there, closure=ask.__closure__)

    class Layer(keras.layers.Layer):
        add_loss = route

        def call(self, inputs):
            self.add_loss(1.0)
            return inputs

    Layer(activity_regularizer="l2")(tf.ones([2, 3]))

    # Keras' own comes second, and is a mean since 3.14.
    assert seen == [False, names.KERAS < (3, 14)]


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (2, 3, 1)])
def test_masked_weights_are_0_where_the_mask_is_false(shape):
    mask = tf.constant([[True, False, False], [True, True, False]])

    weights = keras_losses.masked_weights(2 * tf.ones(shape), mask)

    assert weights.numpy().tolist() == [[2, 0, 0], [2, 2, 0]]
    assert keras_losses.masked_weights(mask, None) is mask


def _compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_the_loss_of_predictions_made_before_is_that_of_the_step():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = tf.ones([4, 2]), tf.ones([4, 3])

    loss = keras_losses.compute_loss(model, x, y, model(x), None)

    assert float(loss) == pytest.approx(model.train_on_batch(x, y))


def test_a_mask_of_an_output_is_seen():
    masked, other = keras.layers.Masking()(tf.ones([1, 2, 3])), tf.ones([1, 2, 3])
    assert keras_losses.mask_of(masked).shape == (1, 2)
    assert keras_losses.mask_of(other) is None
    keras_losses.set_mask(other, keras_losses.mask_of(masked))
    assert keras.src.backend.get_keras_mask(other) is keras_losses.mask_of(masked)


def test_losses_are_replaced_where_keras_calls_them():
    model = _compiled()
    y, predictions = tf.zeros([2, 1]), tf.ones([2, 1])
    losses = custom_parts.compiled_losses_of(model)
    losses.build(y, predictions)

    keras_losses.replace_losses(losses, lambda loss: lambda *args: 3 * loss(*args))

    assert losses(y, predictions) == 3.0
