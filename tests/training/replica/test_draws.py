"""Random numbers of steps: seen where they are drawn, and alike for all examples on request."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.replica import draws
from kerasdist.training.replica.draws import Draws
from tests import strategies
from tests.warned import warned_by

ONES = np.ones((6, 4), "float32")

DRAWS = {
    "normal of TensorFlow": lambda: tf.random.normal([6, 4]),
    "normal with a shape that is a tensor": lambda: tf.random.normal(tf.shape(ONES), stddev=2.0),
    "uniform of TensorFlow": lambda: tf.random.uniform((6, 4), 0, 5, dtype=tf.float32),
    "normal of Keras": lambda: keras.random.normal((6, 4)),
    "truncated_normal of Keras": lambda: keras.random.truncated_normal((6, 4), seed=3),
    "dropout of TensorFlow": lambda: tf.nn.dropout(ONES, 0.5),
    "dropout of Keras": lambda: keras.random.dropout(ONES, 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_all_examples_draw_the_same_on_request(name):
    with Draws(are_alike=True) as seen:
        drawn = np.asarray(tf.function(DRAWS[name], autograph=False)())

    np.testing.assert_array_equal(drawn, np.broadcast_to(drawn[:1], drawn.shape))
    assert seen.places


@pytest.mark.parametrize(
    "layer", [keras.layers.Dropout, keras.layers.GaussianNoise, keras.layers.SpatialDropout1D]
)
def test_all_examples_draw_the_same_in_a_layer(layer):
    layer = layer(0.5)

    with Draws(are_alike=True):
        drawn = np.asarray(tf.function(layer)(np.ones((6, 4, 2), "float32"), training=True))

    np.testing.assert_array_equal(drawn, np.broadcast_to(drawn[:1], drawn.shape))


UNCHANGED = {
    "gamma of Keras": lambda: keras.random.gamma((6, 4), 2.0),
    "gamma of TensorFlow": lambda: tf.random.gamma([6, 4], 2.0),
    "poisson of TensorFlow": lambda: tf.random.poisson([6, 4], 3.0),
    "binomial of Keras": lambda: keras.random.binomial((6, 4), 5.0, 0.5),
}


@pytest.mark.parametrize("name", [*DRAWS, *UNCHANGED])
def test_draws_are_seen_and_left_as_they_are(name):
    with Draws(are_alike=False) as seen:
        drawn = np.asarray((DRAWS | UNCHANGED)[name]())

    assert not (drawn == drawn[:1]).all()
    assert seen.places


def test_nothing_is_left_behind():
    before = tf.random.normal, tf.nn.dropout, tf.nn.experimental.stateless_dropout

    with Draws(are_alike=True):
        assert tf.random.normal is not before[0]
        assert draws.are_alike()

    assert (tf.random.normal, tf.nn.dropout, tf.nn.experimental.stateless_dropout) == before
    assert not draws.are_alike()


def test_a_scalar_and_a_vector_are_drawn_too():
    with Draws(are_alike=True):
        assert tf.random.uniform([]).shape == ()
        assert len(set(tf.random.uniform([5]).numpy())) == 1


def test_the_place_is_the_layer():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, name="forgetting")])

    with Draws(are_alike=False) as seen:
        model(ONES, training=True)

    assert [place for place in seen.places if "forgetting" in place]


def test_first_values_of_weights_are_drawn_as_ever():
    layers = []
    for are_alike in (False, True):
        keras.utils.set_random_seed(1)
        layers.append(keras.layers.Dense(3))
        with Draws(are_alike=are_alike) as seen:
            layers[-1].build((None, 4))
        assert not seen.places

    np.testing.assert_array_equal(*(layer.kernel.numpy() for layer in layers))


class Noisy(keras.optimizers.SGD):
    """Adds noise to its gradients, as Langevin dynamics do."""

    def __init__(self, draw):
        super().__init__(0.1)
        self.draw = draw

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient + self.draw(tf.shape(gradient)), variable, learning_rate)


@pytest.mark.parametrize(("draw", "number"), [(tf.random.normal, 1), (keras.random.normal, 0)])
def test_an_optimizer_that_draws_other_numbers_on_each_replica_is_warned_of(draw, number):
    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="head")])
        model.compile(Noisy(draw), loss="mse")

    texts = warned_by(lambda: model.fit(ONES, np.ones(6), batch_size=6, verbose=0))

    assert (
        sum(text.startswith("The update of Noisy draws with `tf.random`") for text in texts)
        == number
    )
