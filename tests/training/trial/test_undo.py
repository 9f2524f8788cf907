"""A trial leaves no trace, and ends on all workers where it does on one."""

import contextlib
import random
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.ops import gen_random_ops

from kerasdist.private import trial_adapter
from kerasdist.training.gradients import randomness
from kerasdist.training.trial import undo
from tests.cases import exhaustive
from tests.plain import check_as_plain, check_numbers
from tests.strategies import on_three_replicas, on_two_replicas, on_workers, run_on_workers
from tests.training.step.reductions import X, Y, warnings_of_fit


def fit_with_a_loss_that_fails_on_one_worker(strategy):
    """Returns the warnings of a model whose loss is the user's, and of one with a layer of it."""

    def warn(sizes_that_fail, *own_layers):
        def loss(y, predictions):
            if tf.executing_eagerly() and y.shape[0] in sizes_that_fail:
                raise ValueError("no such part")
            return keras.ops.mean(keras.ops.square(y - predictions), axis=-1)

        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), *own_layers, layers.Dense(2)])
            model.compile("sgd", loss)
        return warnings_of_fit(model, batch_size=32)

    # The share of the last replica, with 8 examples for each but one, or 4; then all of the batch.
    return warn([7, 8]), warn([3, 8], layers.Lambda(lambda x: 2 * x))


@on_workers
def test_a_step_that_fails_on_one_worker_keeps_no_other_waiting(workers):
    outcomes = run_on_workers(fit_with_a_loss_that_fails_on_one_worker, workers, timeout_secs=60)

    for (of_loss,), (of_step,) in outcomes:
        for text in (of_loss, of_step):
            assert text.startswith("The step fails with a part of the batch, and not with all of")
            assert "no such part. Until you change it, each replica computes" in text


class Remembers(layers.Layer):
    """A layer of the user's own, which counts its calls and keeps what it saw."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign_add(1.0)
        print("called")
        return inputs + 0 * keras.random.normal(keras.ops.shape(inputs))


@pytest.mark.thorough
@on_three_replicas
@pytest.mark.parametrize(
    ("data", "steps_per_execution"),
    [
        ("arrays", 3),
        ("no end", 1),
        ("train_on_batch", 1),
        *exhaustive(("arrays", 1), ("no end", 3), ("train_on_batch", 3)),
    ],
)
def test_it_leaves_no_trace(strategy, data, steps_per_execution):
    def make():
        model = keras.Sequential([keras.Input((3,)), Remembers(), layers.Dense(2)])
        model.compile("adam", "mse", steps_per_execution=steps_per_execution)
        return model

    def run(model):
        if data == "train_on_batch":
            logs = [model.train_on_batch(X[:7], Y[:7]) for _ in range(3)]
        elif data == "arrays":
            logs = model.fit(X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0).history
        else:
            dataset = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda *_: True).batch(10)
            dataset = dataset.repeat()
            logs = model.fit(dataset, epochs=2, steps_per_epoch=5, shuffle=False, verbose=0).history
        return logs, int(model.optimizer.iterations), random.random(), np.random.uniform()

    check_as_plain(strategy, make, run)


class Draws(keras.Model):
    """A model whose train_step returns a number that it drew without a seed."""

    def train_step(self, data):
        return super().train_step(data) | {"drawn": keras.random.uniform(())}


@on_two_replicas
def test_numbers_without_a_seed_are_those_of_the_programs(strategy):
    def fit(seed):
        keras.backend.clear_session()  # Keras' generator is made by the first number.
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            inputs = keras.Input((3,))
            model = Draws(inputs, layers.Dense(2)(inputs))
            model.compile("sgd", "mse")
        return model.fit(X, Y, batch_size=64, verbose=0).history["drawn"]

    assert fit(3) == fit(3) != fit(4)


class Collects(keras.metrics.Metric):
    """A metric that counts examples in a list of Python's."""

    def __init__(self, name):
        super().__init__(name=name)
        self.sizes = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sizes.append(len(y_true))

    def result(self):
        return float(sum(self.sizes))

    def reset_state(self):
        self.sizes = []


class Notes(keras.Model):
    """A model that notes in Python what its train_step has seen."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)
        self.sizes = []

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        self.sizes.append(len(data[0]))
        return super().train_step(data)


@pytest.mark.filterwarnings("ignore:With `run_eagerly=True`")
@on_three_replicas
# One that is not built yet is tried in its second step.
@pytest.mark.parametrize("is_built", [True, False], ids=["built", "not built"])
def test_it_leaves_no_trace_in_python(strategy, is_built):
    def make():
        model = Notes()
        if is_built:
            model(X)
        model.compile("sgd", "mse", metrics=[Collects("examples")], run_eagerly=True)
        return model

    def run(model):
        history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
        return history, sum(model.sizes)

    check_as_plain(strategy, make, run)


class Speaks(keras.Model):
    """A model with a step of its own, which prints and warns in each call."""

    def train_step(self, data):
        print("in the step")
        warnings.warn("in the step", stacklevel=2)
        return super().train_step(data)


def trained_by(seed: int, scope):
    """Returns what a training comes to that is checked twice."""
    initializer = keras.initializers.RandomNormal(seed=seed)
    with scope:
        inputs = keras.Input((3,))
        model = Speaks(inputs, layers.Dense(2, kernel_initializer=initializer)(inputs))
    losses = []
    for _ in range(2):
        model.compile("adam", "mse")
        losses += model.fit(X, Y, batch_size=10, shuffle=False, verbose=0).history["loss"]
    return losses, model.get_weights()


@pytest.mark.filterwarnings("ignore:in the step")
@on_two_replicas
def test_trainings_in_two_threads_leave_each_other_and_the_process_alone(strategy):
    def of_the_process():
        return gen_random_ops.random_uniform, sys.stdout, tf.get_logger().level, random.getstate()

    seeds = (1, 2)
    truths = [trained_by(seed, contextlib.nullcontext()) for seed in seeds]
    before = of_the_process()

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda seed: trained_by(seed, strategy.scope()), seeds))

    check_numbers(outcomes, truths)
    assert of_the_process() == before


def test_what_is_silent_in_one_thread_is_heard_in_another(capsys, recwarn):
    def speak():
        print("heard")
        warnings.warn("heard", stacklevel=1)

    with undo.without_traces(keras.Sequential()):
        speak()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(speak).result()

    assert capsys.readouterr().out == "heard\n"
    assert [str(each.message) for each in recwarn] == ["heard"]


DRAWS = {
    "normal": lambda: tf.random.normal([4, 3]),
    "uniform": lambda: tf.random.uniform([4, 3]),
    "integers": lambda: tf.random.uniform([4, 3], 2, 9, tf.int32),
    "truncated": lambda: tf.random.truncated_normal([4, 3]),
    "generator": lambda: tf.random.Generator.from_seed(1).normal([4, 3]),
    "stateless": lambda: tf.random.stateless_uniform([4, 3], [1, 2], 2, 9, tf.int32),
    "Keras normal": lambda: keras.random.normal((4, 3)),
    "Keras integers": lambda: keras.random.randint((4, 3), 2, 9),
    "dropout": lambda: keras.random.dropout(tf.ones([4, 3]), 0.5),
    "gamma": lambda: tf.random.gamma([4, 3], 2.0),
    "gamma of each example": lambda: tf.random.gamma([], tf.fill([4, 3], 2.0)),
    "stateless gamma": lambda: tf.random.stateless_gamma([4, 3], [1, 2], 2.0),
    "poisson": lambda: tf.random.poisson([4, 3], 3.0),
    "categorical": lambda: tf.random.categorical(tf.zeros([4, 5]), 3),
    "Keras binomial": lambda: keras.random.binomial((4, 3), 5.0, 0.5),
    "binomial": lambda: tf.random.Generator.from_seed(1).binomial([4, 3], 5.0, 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_alike_for_all_examples(name):
    with randomness.generators_kept(), trial_adapter.alike_draws() as start:
        start()
        drawn = DRAWS[name]().numpy()
        start()
        again = DRAWS[name]().numpy()

    assert (drawn == drawn[0]).all()
    assert len(np.unique(drawn)) > 1
    np.testing.assert_array_equal(drawn, again)


ORDERS = {
    "shuffle": lambda: tf.random.shuffle(tf.range(5)),
    "stateless": lambda: tf.random.experimental.stateless_shuffle(tf.range(5), [1, 2]),
    "Keras": lambda: keras.random.shuffle(keras.ops.arange(5)),
    "argsort": lambda: tf.argsort(tf.random.normal([5]), direction="DESCENDING"),
    "argsort of columns": lambda: tf.argsort(tf.random.uniform([5, 2]), axis=0)[:, 1],
    "argsort of whole numbers": lambda: tf.argsort(tf.random.uniform([5], 0, 9, tf.int32)),
    "argsort of Keras": lambda: keras.ops.argsort(keras.random.uniform((5,))),
    "top_k": lambda: tf.math.top_k(tf.random.uniform([5]), 5).indices,
}


@pytest.mark.parametrize("name", ORDERS)
def test_examples_in_a_random_order_are_turned_round(name):
    with randomness.generators_kept(), trial_adapter.alike_draws() as start:
        start()
        order = ORDERS[name]()

    assert list(order) == [4, 3, 2, 1, 0]


def test_what_is_not_the_same_is_sorted_as_ever():
    rows = tf.constant([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]])

    with trial_adapter.alike_draws():
        values, indices = tf.math.top_k(rows, 2)

    np.testing.assert_array_equal(values, [[3.0, 2.0], [5.0, 5.0]])
    np.testing.assert_array_equal(indices, [[1, 2], [2, 1]])


def test_several_numbers_for_each_example_are_alike_for_all_examples():
    with trial_adapter.alike_draws() as start:
        start()
        of_four = tf.random.poisson([2], tf.fill([4, 3], 3.0)).numpy()
        start()
        of_two = tf.random.poisson([2], tf.fill([2, 3], 3.0)).numpy()

    assert (of_four == of_four[:, :1]).all()
    np.testing.assert_array_equal(of_four[:, :2], of_two)


def test_numbers_that_are_alike_have_the_gradient_of_their_parameter():
    alpha = tf.constant([[1.0, 2.0]] * 3)

    with trial_adapter.alike_draws() as start, tf.GradientTape() as tape:
        start()
        tape.watch(alpha)
        drawn = tf.random.gamma([], alpha)

    assert (tape.gradient(drawn, alpha).numpy() > 0).all()


def test_every_assignment_is_undone():
    variable: Any = tf.Variable([1.0, 2.0, 3.0])
    generator = tf.random.Generator.from_seed(1)
    expected = generator.state.numpy()

    with trial_adapter.assignments_undone():
        generator.normal([3])
        generator.skip(1)
        made: Any = tf.Variable(5.0)
        variable.assign_add([1.0, 1.0, 1.0])
        variable.assign_sub([1.0, 2.0, 3.0])
        variable.scatter_nd_update([[0]], [9.0])
        variable.scatter_add(tf.IndexedSlices([4.0], [1]))
        variable.assign([7.0, 7.0, 7.0])

    assert variable.numpy().tolist() == [1.0, 2.0, 3.0]
    assert generator.state.numpy().tolist() == expected.tolist()
    assert made.numpy() == 5.0
