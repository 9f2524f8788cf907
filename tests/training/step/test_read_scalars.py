"""What a variable hides in the first step is checked when a program sets it, and only then."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kerasdist.training.hooks import step_variables
from kerasdist.training.step.read_scalars import ReadScalars
from kerasdist.training.trial.fit import TrialOfFit
from tests import strategies
from tests.cases import marked
from tests.plain import check_as_plain, check_workers
from tests.strategies import on_three_replicas, on_two_replicas, on_workers
from tests.warned import warned_by

DIFFERS = "is not the one that the whole batch gives"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = RNG.normal(size=(40, 1)).astype("float32")
FIT = {"batch_size": 10, "shuffle": False, "verbose": 0}


def scalar(value, dtype="float32"):
    return tf.Variable(value, dtype=dtype, trainable=False)


def make_model():
    with strategies.get("one device").scope():
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


class Checked:
    """The scalars of a step that has been checked with the values that they have."""

    def __init__(self, step, model=None):
        model = model or make_model()
        self.scalars = ReadScalars(model)

        def run():
            step()
            self.scalars.note_trace()

        (run if model.run_eagerly else tf.function(run, autograph=False))()
        self.scalars.note_checked()

    def knows(self, variable, *values):
        """Returns for some values that a variable gets one by one whether they were checked."""
        answers = []
        for value in values:
            variable.assign(value)
            answers.append(self.scalars.are_checked())
            if not answers[-1]:
                self.scalars.note_checked()
        return answers


@pytest.mark.parametrize(
    ("first", "values", "are_checked"),
    [
        (0.0, (0.25, 0.5, 1.0, 0.0, 0.5), [False, True, True, True, True]),
        (1.0, (0.9, 0.8), [False, True]),
        (0.0, (1.0, 0.0, 1.0, 0.5, 0.4), [False, True, True, False, True]),
        (0.5, (0.0, 1.0, 0.5), [True, True, True]),
    ],
)
def test_a_number_that_leaves_0_or_1_shows_more_once(first, values, are_checked):
    weight = scalar(first)
    assert Checked(weight.read_value).knows(weight, *values) == are_checked


def test_whole_numbers_are_told_from_each_other_until_there_are_many():
    phase, is_on = scalar(3, "int32"), scalar(True, "bool")
    of_phase, of_switch = Checked(phase.read_value), Checked(is_on.read_value)

    assert of_phase.knows(phase, *range(3, 10)) == [True, *[False] * 4, True, True]
    assert of_switch.knows(is_on, False, True, False) == [False, True, True]


def test_a_vector_holds_several_such_numbers_and_a_long_one_is_part_of_a_model():
    weights, phases = scalar([1.0, 0.0, 0.0]), scalar([0, 0], "int64")
    of_weights, of_phases = Checked(weights.read_value), Checked(phases.read_value)

    values = ([0.5, 0.0, 0.0], [0.2, 0.0, 0.0], [1.0, 0.5, 0.0], [0.1, 0.1, 0.1], [0.7, 0.2, 0.0])
    assert of_weights.knows(weights, *values) == [False, True, False, False, True]
    assert of_phases.knows(phases, [0, 1], [0, 1], [1, 0]) == [False, True, False]
    long = scalar([0.0] * 33)
    assert Checked(long.read_value).knows(long, [1.0] * 33) == [True]


def test_what_two_of_them_hide_together_shows_with_the_second():
    first, second = scalar(0.0), scalar(0.0)
    checked = Checked(lambda: first * second)

    assert checked.knows(first, 0.5, 0.4) == [False, True]
    assert checked.knows(second, 0.5, 0.4) == [False, True]
    assert checked.knows(first, 0.0) == [True]


def test_what_a_step_sets_or_does_not_read_shows_nothing():
    read, unread, counted, counted_inside = (scalar(0.0) for _ in range(4))

    def step():
        counted.assign_add(1.0)
        tf.cond(counted > 5.0, lambda: counted_inside.assign_add(1.0), counted_inside.read_value)
        tf.cond(counted > 5.0, read.read_value, lambda: 0.0)

    checked = Checked(step)
    for variable in (unread, counted, counted_inside):
        assert checked.knows(variable, 7.0) == [True]
    assert checked.knows(read, 7.0) == [False]


def test_nor_do_numbers_of_optimizers_metrics_and_our_own():
    model = make_model()
    with model.distribute_strategy.scope():
        model.frozen = keras.Variable(1.0, trainable=False)
        model.tracker = keras.metrics.Mean()
        model.other = keras.optimizers.SGD(1.0)
    with step_variables.being_made(model.distribute_strategy):
        own = scalar(0.0)
    numbers = [own, model.tracker.total.value, model.other.learning_rate.value]
    frozen = model.frozen.value

    checked = Checked(lambda: tf.add_n([*numbers, frozen]), model)

    for variable in numbers:
        assert checked.knows(variable, 0.5) == [True]
    assert checked.knows(frozen, 0.5) == [False]


class Annealed(keras.Model):
    """A model whose loss compares the examples of a batch, by a weight that is 0 at first."""

    def __init__(self):
        super().__init__()
        self.hidden, self.dense = layers.Dense(8, "tanh"), layers.Dense(1)
        self.weight = scalar(0.0)
        self.unread = scalar(0.0)

    def call(self, x):
        return self.dense(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = tf.reduce_mean(tf.square(tf.subtract(y_pred, y)))
        return loss + self.weight * tf.reduce_sum(tf.reduce_mean(self.hidden(x), axis=0) ** 2)


def test_an_eager_step_may_read_all_that_its_model_holds():
    with strategies.get("one device").scope():
        model = Annealed()
    model.compile(run_eagerly=True)
    checked = Checked(lambda: None, model)

    for variable in (model.weight, model.unread):
        assert checked.knows(variable, 0.5, 0.6) == [False, True]


class OfStep(Annealed):
    """The same with a step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class OfVector(OfStep):
    """The weight is that of the second of two terms, which a vector holds."""

    def __init__(self):
        super().__init__()
        self.of_terms = scalar([1.0, 0.0])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        of_batch = tf.reduce_mean(self.hidden(x), axis=0)
        terms = [tf.reduce_mean(tf.subtract(y_pred, y) ** 2), of_batch[0] ** 2]
        return tf.tensordot(self.of_terms, tf.stack(terms), 1)


class OfLoss(Annealed):
    """The same with a compiled loss, which sees the whole batch where a check finds it needs it."""

    compute_loss = keras.Model.compute_loss

    def loss_of(self, y_true, y_pred):
        loss = tf.reduce_mean(tf.square(y_pred - y_true))
        return loss + self.weight * tf.reduce_mean(y_pred) ** 2


def made_of(model_class, **arguments):
    def make():
        model = model_class()
        model(X[:1])
        loss = model.loss_of if model_class is OfLoss else None
        model.compile(keras.optimizers.SGD(0.1), loss, **arguments)
        return model

    return make


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.weight.assign(min(1.0, epoch / 2))


def fit_annealed(model):
    return model.fit(X, Y, epochs=4, callbacks=[Anneal()], **FIT).history


def fit_twice(model):
    first = model.fit(X, Y, epochs=1, **FIT).history
    model.weight.assign(1.0)
    return [first, model.fit(X, Y, epochs=2, **FIT).history]


def fit_vector_twice(model):
    first = model.fit(X, Y, epochs=1, **FIT).history
    model.of_terms.assign([1.0, 5.0])
    return [first, model.fit(X, Y, epochs=2, **FIT).history]


def train_on_batches(model):
    logs = []
    for epoch in range(4):
        model.weight.assign(epoch / 2)
        logs.append(model.train_on_batch(X[:10], Y[:10], return_dict=True))
    return logs


def evaluate_twice(model):
    first = model.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    model.weight.assign(1.0)
    return [first, model.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)]


PROGRAMS = {
    "annealed": (made_of(OfStep), fit_annealed),
    "second fit": (made_of(OfStep), fit_twice),
    "second fit, of a vector": (made_of(OfVector), fit_vector_twice),
    "annealed, several steps": (made_of(OfStep, steps_per_execution=3), fit_annealed),
    "annealed, eager": (made_of(OfStep, run_eagerly=True), fit_annealed),
    "annealed, in compute_loss": (made_of(Annealed), fit_annealed),
    "annealed, compiled": (made_of(OfLoss), fit_annealed),
    "train_on_batch": (made_of(Annealed), train_on_batches),
    "evaluate": (made_of(Annealed), evaluate_twice),
}
# On three replicas, too.
FURTHER = PROGRAMS.keys() - {"annealed", "second fit"}


@pytest.mark.thorough
@on_two_replicas
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_term_whose_weight_starts_at_0_gives_what_one_device_gives(strategy, name):
    warned_by(lambda: check_as_plain(strategy, *PROGRAMS[name]))


@pytest.mark.thorough
@on_three_replicas
@pytest.mark.parametrize("name", marked(PROGRAMS, exhaustive=FURTHER))
def test_so_it_does_on_three_replicas(strategy, name):
    warned_by(lambda: check_as_plain(strategy, *PROGRAMS[name]))


def fit_each(strategy):
    outcomes = []
    for name in ("annealed", "second fit", "evaluate"):
        make, run = PROGRAMS[name]
        keras.utils.set_random_seed(4)
        with strategy.scope() if hasattr(strategy, "cluster") else contextlib.nullcontext():
            model = make()
        numbers = run(model)
        outcomes.append((numbers, [np.asarray(each) for each in model.weights]))
    return outcomes


@on_workers
def test_workers_check_it_together(workers):
    check_workers(workers, fit_each)


@pytest.fixture
def checks(monkeypatch):
    """The weights of the annealed term with which steps were checked."""
    weights = []
    original = TrialOfFit.warn_of_differences

    def warn_of_differences(model, *args, **kwargs):
        weights.append(float(model.weight))
        return original(model, *args, **kwargs)

    monkeypatch.setattr(TrialOfFit, "warn_of_differences", warn_of_differences)
    return weights


class OfMeans(Annealed):
    """A model that any batch may be divided for, whatever the weight is."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(tf.subtract(y_pred, y))) * (1.0 + self.weight)


def fit_with(strategy, on_epoch_begin):
    with strategy.scope():
        model = made_of(OfMeans)()
        model.optimizer.learning_rate.assign(1.0)
    ours = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: on_epoch_begin(model, epoch)
    )
    texts = warned_by(lambda: model.fit(X, Y, epochs=5, callbacks=[ours], **FIT))
    assert not any(DIFFERS in text for text in texts)


@on_two_replicas
def test_a_weight_that_changes_in_each_epoch_is_checked_once_more(strategy, checks):
    fit_with(strategy, lambda model, epoch: model.weight.assign(epoch / 8))
    assert checks == [0, 1 / 8]


@on_two_replicas
def test_a_learning_rate_and_what_no_step_reads_cause_no_check(strategy, checks):
    def change(model, epoch):
        model.unread.assign(epoch)
        model.optimizer.learning_rate.assign(0.1 / (1 + epoch))

    fit_with(strategy, change)
    assert checks == [0]
