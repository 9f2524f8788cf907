"""A compiled loss that is no mean over the examples is that of one device, with its gradient."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.training.losses import whole_losses
from kerasdist.training.trial import choose
from tests.cases import exhaustive
from tests.plain import check_as_plain, check_workers, outcome_of
from tests.strategies import (
    on_three_replicas,
    on_workers,
)
from tests.warned import warned_by

# Of an output without a loss.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),
]
# The last batch has one example, so that two of three replicas have none.
RNG = np.random.default_rng(5)
X = RNG.normal(size=(17, 3)).astype("float32")
MASKS = (RNG.uniform(size=(17, 4, 2)) < np.linspace(0.1, 0.9, 17)[:, None, None]).astype("uint8")
CLASSES = RNG.integers(0, 3, 17)
WEIGHTS = RNG.uniform(0.2, 2.0, 17).astype("float32")
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


def net(kind=keras.Model):
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    mask = keras.layers.Reshape((4, 2), name="mask")(keras.layers.Dense(8, "sigmoid")(hidden))
    place = keras.layers.UnitNormalization(name="place")(keras.layers.Dense(3)(hidden))
    number = keras.layers.Dense(1, name="number")(hidden)
    return kind(inputs, {"mask": mask, "place": place, "number": number})


def compiled_with(loss, *, kind=keras.Model, **arguments):
    def make():
        model = net(kind)
        model.compile(keras.optimizers.SGD(0.05), loss(), **arguments)
        return model

    return make


Y = {"mask": MASKS, "place": CLASSES, "number": X[:, :1]}


def first(number):
    return X[:number], {name: each[:number] for name, each in Y.items()}


def fit_and_evaluate(model, weights=None):
    history = model.fit(X, Y, sample_weight=weights, validation_data=first(5), **FIT).history
    return (
        history,
        model.evaluate(X, Y, batch_size=6, verbose=0, return_dict=True),
        model.train_on_batch(*first(7), return_dict=True),
        model.test_on_batch(*first(7), return_dict=True),
    )


def losses_of(mask, place, number="mse"):
    return lambda: {"mask": mask(), "place": place(), "number": number}


LOSSES = {
    "strings": losses_of(lambda: "tversky", lambda: "circle"),
    "functions": losses_of(lambda: keras.losses.dice, lambda: keras.losses.circle),
    "sums": losses_of(
        lambda: keras.losses.Tversky(axis=(0, 1), reduction="sum"),
        lambda: keras.losses.Circle(gamma=2.0, reduction="sum"),
    ),
    "axes": losses_of(
        lambda: keras.losses.Dice(axis=(-3, 1)),
        lambda: keras.losses.Circle(gamma=2.0),
        keras.losses.CosineSimilarity(axis=0),
    ),
    "without reduction": lambda: {"mask": keras.losses.Dice(axis=(-3, 1), reduction=None)},
}


def classes():
    return {
        "mask": keras.losses.Dice(),
        "place": keras.losses.Circle(gamma=2.0),
        "number": keras.losses.MeanAbsoluteError(),
    }


@pytest.mark.exhaustive  # The workers below have the same program.
@on_three_replicas
def test_keras_own_are_those_of_all_examples(strategy):
    make = compiled_with(classes, loss_weights={"mask": 3.0, "place": 0.5, "number": 1.0})

    check_as_plain(strategy, make, lambda model: fit_and_evaluate(model, WEIGHTS))


@on_three_replicas
@pytest.mark.parametrize(
    "losses", ["without reduction", *exhaustive("axes", "functions", "strings", "sums")]
)
def test_however_they_are_given(losses, strategy):
    # With its default `gamma` the circle loss is about 100.
    check_as_plain(strategy, compiled_with(LOSSES[losses]), fit_and_evaluate, tolerance=1e-4)


@on_three_replicas
@pytest.mark.parametrize(
    "arguments", [{"run_eagerly": True}, *exhaustive({"steps_per_execution": 2})], ids=str
)
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
def test_in_steps_of_every_kind(arguments, strategy):
    def make():
        model = net()
        model = keras.Model(model.inputs, model.get_layer("place").output)
        loss = keras.losses.Circle(gamma=2.0, reduction=None)  # A sum.
        model.compile(keras.optimizers.SGD(0.001), loss, **arguments)
        return model

    check_as_plain(strategy, make, lambda model: model.fit(X, CLASSES, **FIT).history)


class OwnSteps(keras.Model):
    """Computes the compiled losses in steps of its own, and goes on with them."""

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.sqrt(self.compute_loss(x, y, self(x, training=True)) + 1.0)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"loss": self.compute_loss(x, y, self(x))}


@on_three_replicas
def test_in_steps_of_ones_own_without_a_word(strategy, recwarn):
    def compiled():
        return {"mask": keras.losses.Dice(), "place": keras.losses.Circle(gamma=2.0)}

    check_as_plain(strategy, compiled_with(compiled, kind=OwnSteps), fit_and_evaluate)
    assert not [each for each in recwarn if "whole batch" in str(each.message)]


def fit_on_workers(strategy):
    programs = (
        (compiled_with(classes), lambda model: fit_and_evaluate(model, WEIGHTS)),
        (small_net(contrast), evaluate_around_fit),
        (small_net(random_pairs), lambda model: model.fit(X, X, **FIT).history),
    )
    return [outcome_of(strategy.scope(), make, run) for make, run in programs]


@on_workers
def test_on_every_worker(workers):
    check_workers(workers, fit_on_workers)


class InACondition(keras.Model):
    """Computes its losses where replicas cannot meet."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        compute = super().compute_loss
        return tf.cond(tf.size(y) > 0, lambda: compute(x, y, y_pred), lambda: 0.0)


def in_a_condition():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "sigmoid")])
    model = InACondition(model.inputs, model.outputs)
    model.compile("sgd", keras.losses.Dice())
    return model


def evaluate_all(model):
    return model.evaluate(X, np.abs(X), verbose=0)


@on_three_replicas
def test_where_replicas_cannot_meet_each_has_the_whole_batch(strategy):
    (told,) = warned_by(lambda: check_as_plain(strategy, in_a_condition, evaluate_all))

    assert told.startswith("What `evaluate` gives as 'loss' is not what it is on one device")


@on_three_replicas
def test_where_they_cannot_have_it_either_a_warning_says_so(strategy, monkeypatch):
    monkeypatch.setattr(choose, "finds_nothing", lambda *_: False)  # As with data by file.
    with strategy.scope():
        model = in_a_condition()

    checked, told, *_ = warned_by(lambda: evaluate_all(model))

    assert checked.startswith("What `evaluate` gives as 'loss' is not what it is on one device")
    assert told.startswith("The loss 'dice' is computed inside of a condition")


def contrast(y, predictions):
    """How much more like its own label than like the others' each prediction is."""
    similarities = keras.ops.matmul(predictions, keras.ops.transpose(y))
    return -keras.ops.diagonal(keras.ops.log_softmax(similarities))


class WithUnused(keras.layers.Layer):
    """Has a layer that nothing calls, so that Keras never builds it."""

    def __init__(self):
        super().__init__()
        self.dense, self.unused = keras.layers.Dense(3, "sigmoid"), keras.layers.Dense(7)

    def call(self, x):
        return self.dense(x)


@pytest.mark.filterwarnings("ignore:.*it looks like it has unbuilt state")
@on_three_replicas
def test_a_layer_that_nothing_calls_does_not_hide_the_loss(strategy):
    def make():
        model = keras.Sequential([keras.Input((3,)), WithUnused()])
        model.compile("adam", contrast)
        return model

    check_as_plain(strategy, make, lambda model: model.fit(X, np.abs(X), **FIT).history)


def masked_mean(y, predictions):
    mask = keras.ops.cast(y > 0, predictions.dtype)
    return keras.ops.sum(mask * (y - predictions) ** 2) / (keras.ops.sum(mask) + 1.0)


def random_pairs(y, predictions):
    """How near each prediction is to random others of the batch."""
    positions = tf.range(tf.shape(predictions)[0])
    seed = keras.random.randint((2,), 0, 99)
    orders = (
        keras.random.shuffle(positions),
        tf.random.shuffle(positions),
        tf.random.experimental.index_shuffle(positions, seed, positions[-1]),
    )
    return sum(squares(tf.gather(predictions, order), predictions) for order in orders)


class CallsByName(keras.losses.Dice):
    """Calls Keras' loss with arguments that have names."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(y_true=y_true, y_pred=y_pred, sample_weight=sample_weight)


class OnlyCalls(keras.losses.Loss):
    """Never calls Keras' own."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.ops.mean(contrast(y_true, y_pred))


def squares(y, predictions):
    return keras.ops.mean((y - predictions) ** 2, axis=-1)


def part(y, predictions):
    """A mean over the replicas, made by hand."""
    return squares(y, predictions) / tf.distribute.get_strategy().num_replicas_in_sync


def small_net(loss, *, name=None):
    def make():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(4, "tanh")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden), name=name)
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    return make


def evaluate_around_fit(model):
    y = X[:, ::-1].cumsum(axis=1)
    few = X[:5], y[:5]
    model.test_on_batch(*few)  # Before it is known.
    history = model.fit(X, y, sample_weight=WEIGHTS, validation_data=few, **FIT).history
    return history, model.evaluate(X, y, batch_size=6, verbose=0)


@on_three_replicas
@pytest.mark.parametrize(
    "loss",
    [contrast, random_pairs, *exhaustive(masked_mean, CallsByName(name="named"), OnlyCalls())],
)
def test_the_users_own_are_those_of_all_examples(loss, strategy, recwarn, capsys):
    name = f"net_of_{strategy.num_replicas_in_sync}"  # A line is said once.
    check_as_plain(strategy, small_net(loss, name=name), evaluate_around_fit)

    said = capsys.readouterr().err
    assert re.search("Loss: '.*' of the model .* is no mean over the examples, so each rep", said)
    assert not [each for each in recwarn if "replicas" in str(each.message)]


@on_three_replicas
def test_evaluate_alone_finds_it_too(strategy, recwarn):
    check_as_plain(strategy, small_net(contrast), lambda model: model.evaluate(X, X, verbose=0))
    assert not [each for each in recwarn if "replicas" in str(each.message)]


@on_three_replicas
def test_one_example_shows_nothing_and_the_next_batch_is_checked(strategy, recwarn):
    def run(model):
        model.train_on_batch(X[:1], X[:1])
        return model.fit(X, X, **FIT).history

    check_as_plain(strategy, small_net(contrast), run)
    assert not [each for each in recwarn if "replicas" in str(each.message)]


@pytest.mark.exhaustive
@on_three_replicas
@pytest.mark.parametrize(
    ("steps_per_execution", "class_weight"), [(4, None), (1, None), (1, {0: 2.0, 1: 0.5, 2: 1.0})]
)
def test_data_that_is_distributed_shows_it_too(
    steps_per_execution, class_weight, strategy, recwarn
):
    def make():
        model = small_net(contrast)()
        model.compile(model.optimizer, contrast, steps_per_execution=steps_per_execution)
        return model

    def run(model):
        labels = np.eye(3, dtype="float32")[CLASSES] if class_weight else X
        data = tf.data.Dataset.from_tensor_slices((X, labels)).batch(6)
        if model.distribute_strategy is strategy:
            data = strategy.experimental_distribute_dataset(data)
        history = model.fit(data, epochs=2, verbose=0, class_weight=class_weight).history
        return history, model.evaluate(data, verbose=0)

    check_as_plain(strategy, make, run)
    assert not [each for each in recwarn if "replicas" in str(each.message)]


@pytest.mark.exhaustive
@on_three_replicas
def test_beside_other_losses_and_in_steps_of_ones_own(strategy):
    def losses():
        return {"mask": keras.losses.Dice(), "number": masked_mean}

    make = compiled_with(losses, kind=OwnSteps, loss_weights={"mask": 2.0, "number": 0.5})
    check_as_plain(strategy, make, lambda model: fit_and_evaluate(model)[:2])


@on_three_replicas
def test_a_mean_sends_nothing(strategy, monkeypatch):
    monkeypatch.delattr(whole_losses, "compute")

    check_as_plain(strategy, small_net(squares), evaluate_around_fit)


@on_three_replicas
def test_a_loss_that_is_divided_by_the_number_of_replicas_sees_one(strategy):
    check_as_plain(strategy, small_net(part), lambda model: model.fit(X, X, **FIT).history)


class MadeInItsStep(keras.Model):
    """Has no weights before its first step."""

    train_step = OwnSteps.train_step

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


@on_three_replicas
def test_the_first_step_of_a_model_that_nobody_has_built(strategy):
    def make():
        model = MadeInItsStep()
        model.compile("sgd", contrast)
        return model

    check_as_plain(strategy, make, lambda model: model.fit(X, X, **FIT).history)
