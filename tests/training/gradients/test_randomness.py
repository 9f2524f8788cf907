"""Dropout drops other units on other replicas, and the same ones in every run with one seed."""

import contextlib
import functools
import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.gradients import randomness
from tests import strategies
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas, on_two_replicas


class Recorder(keras.layers.Layer):
    """Adds what it sees of the first example to a variable of its replica."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=input_shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign(inputs[0])
        return inputs


def masks(strategy, seed=5):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        recorder = Recorder()
        model = keras.Sequential(
            [keras.Input((50,)), keras.layers.Dropout(0.5), recorder, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    ones = np.ones((16, 50), "float32")
    model.fit(ones, ones[:, :1], batch_size=16, verbose=0)
    replicas = strategy.experimental_local_results(recorder.seen.value)
    return np.stack([replica.numpy() for replica in replicas])


# A warning says that the masks, which the recorder keeps, are not the same.
of_unequal_states = pytest.mark.filterwarnings("ignore:What a step assigns to the state")


@of_unequal_states
@on_three_replicas
def test_every_replica_has_a_mask_of_its_own(strategy):
    assert len(np.unique(masks(strategy), axis=0)) == strategy.num_replicas_in_sync


@of_unequal_states
@on_three_replicas
def test_masks_come_from_the_seed(strategy):
    assert np.array_equal(masks(strategy), masks(strategy))
    assert not np.array_equal(masks(strategy), masks(strategy, seed=6))


@pytest.mark.parametrize("first_replica", [0, 2])
def test_the_operations_of_tensorflow_draw_other_numbers_on_other_workers(first_replica):
    keras.utils.set_random_seed(5)

    @tf.function
    def draw():
        return tf.random.normal([3]), tf.function(lambda: tf.random.uniform([3]))()

    def draw_on_worker():
        with randomness.graph_seed_of_worker(first_replica):
            return draw.python_function()

    for ours, theirs in zip(tf.function(draw_on_worker)(), draw(), strict=True):
        assert np.array_equal(ours, theirs) == (first_replica == 0)


def test_what_all_examples_are_given_is_drawn_alike_on_every_worker():
    keras.utils.set_random_seed(5)

    def draw_on_worker(first_replica):
        with randomness.graph_seed_of_worker(first_replica):
            with randomness.graph_seed_of_all():
                of_all = tf.random.normal([3])
            return of_all, tf.random.normal([3])

    (of_all, own), (of_all_too, of_other) = (
        tf.function(draw_on_worker)(first_replica) for first_replica in (0, 2)
    )
    np.testing.assert_array_equal(of_all, of_all_too)
    assert not np.array_equal(own, of_other)


def test_workers_that_run_one_graph_are_told_of_what_they_draw_alike():
    def graph_of(draw):
        return tf.function(draw).get_concrete_function().graph

    generator = keras.random.SeedGenerator(1)
    with pytest.warns(UserWarning, match="come again in steps of the other 2. Draw with `keras"):
        randomness.warn_of_repeats(graph_of(lambda: tf.random.normal([3])), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        randomness.warn_of_repeats(graph_of(lambda: tf.random.normal([3])), 1)
        randomness.warn_of_repeats(graph_of(lambda: keras.random.normal([3], seed=generator)), 3)


class AddsNoise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + 0.0 * keras.random.normal(keras.ops.shape(inputs))


@each_strategy
def test_random_numbers_need_no_seed(strategy):
    ones = np.ones((10, 3), "float32")

    def make():
        model = keras.Sequential([keras.Input((3,)), AddsNoise(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def run(model):
        history = model.fit(ones, ones[:, :1], batch_size=4, epochs=2, verbose=0).history
        # What comes next in the program is what would have come.
        return history, random.random(), keras.random.normal([2])

    check_as_plain(strategy, make, run)


@pytest.mark.parametrize("first", ["in the scope", "in a layer", "in a function"])
def test_a_program_may_go_on_with_another_strategy(first):
    keras.utils.clear_session()  # And with it the generator of the program.
    draw = functools.partial(keras.random.normal, (2,))
    with strategies.get("4 replicas").scope():
        if first == "in the scope":
            draw()
        elif first == "in a layer":
            model = keras.Sequential([keras.Input((3,)), AddsNoise()])
            model.predict(np.ones((4, 3), "float32"), verbose=0)
        else:
            tf.function(draw, autograph=False)()

    with strategies.get("2 replicas").scope():
        model = keras.Sequential([keras.Input((3,)), AddsNoise(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    ones = np.ones((8, 3), "float32")
    losses = model.fit(ones, ones[:, :1], batch_size=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


class Noisy(keras.optimizers.SGD):
    """Adds noise to each gradient, as Langevin dynamics do."""

    def update_step(self, gradient, variable, learning_rate):
        noise = keras.random.normal(keras.ops.shape(gradient), stddev=0.1)
        super().update_step(gradient + noise, variable, learning_rate)


@on_three_replicas
def test_the_noise_of_an_optimizer_is_that_of_one_device(strategy):
    def train(scope):
        keras.utils.set_random_seed(7)
        with scope:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile(Noisy(0.1), loss="mse")
        x = np.random.default_rng(0).normal(size=(7, 4)).astype("float32")
        model.fit(x, x[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0)
        kernel = model.layers[0].kernel.value
        return [each.numpy() for each in strategy.experimental_local_results(kernel)]

    (expected,) = train(contextlib.nullcontext())
    copies = train(strategy.scope())

    np.testing.assert_allclose(copies, [expected] * len(copies), rtol=0, atol=1e-5)


class OftenerOnOthers(Noisy):
    """Draws once more on each replica than on the one before it."""

    def update_step(self, gradient, variable, learning_rate):
        for _ in range(1 + peers.replica_id()):
            super().update_step(gradient, variable, learning_rate)


def test_the_numbers_of_a_trial_in_another_thread_are_not_put_back():
    before = random.getstate()
    with ThreadPoolExecutor(1) as pool:
        trial = randomness.generators_kept()
        pool.submit(trial.__enter__).result()
        pool.submit(random.seed, 0).result()
        meanwhile = randomness.PythonGenerators()
        pool.submit(trial.__exit__, None, None, None).result()

    meanwhile.put_back()

    assert random.getstate() == before


def test_a_trial_is_not_disturbed_by_what_was_before_it():
    generators = randomness.PythonGenerators()
    with ThreadPoolExecutor(1) as pool:
        trial = randomness.generators_kept()
        pool.submit(trial.__enter__).result()
        random.seed(0)
        of_trial = random.getstate()

        generators.put_back()

        assert random.getstate() == of_trial
        pool.submit(trial.__exit__, None, None, None).result()


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_same_numbers_come_once_more(is_kept):
    with randomness.generators_kept() if is_kept else contextlib.nullcontext():
        generators = randomness.PythonGenerators()
        numbers = random.random(), np.random.random()
        generators.put_back()

        assert (random.random(), np.random.random()) == numbers


@pytest.mark.filterwarnings("ignore:What a step assigns to the trained weight")
@on_two_replicas
def test_a_replica_that_draws_more_often_than_the_first_goes_on(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(OftenerOnOthers(0.1), loss="mse")

    model.fit(np.ones((8, 4)), np.ones((8, 2)), batch_size=4, verbose=0)

    assert int(model.optimizer.iterations) == 2
