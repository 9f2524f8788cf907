"""Losses that a program reduces in its own way are those of the whole batch on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kerasdist
from kerasdist.training.losses import whole_losses
from tests.cases import exhaustive, named
from tests.plain import check_as_plain
from tests.strategies import each_strategy, on_three_replicas, on_two_replicas

RNG = np.random.default_rng(7)
X = RNG.normal(size=(21, 3)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(3, 2))).astype("float32")
WEIGHTS = RNG.uniform(0.1, 3, (21, 3)).astype("float32")


def fit(model, **arguments):
    return model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **arguments).history


def fit_and_evaluate(model):
    return fit(model), model.evaluate(X, Y, batch_size=8, verbose=0)


def network(cls=keras.Model, **dense_arguments):
    inputs = keras.Input((3,))
    hidden = layers.Dense(4, "tanh", **dense_arguments)(inputs)
    return cls(inputs, layers.Dense(2)(hidden))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*eagerly has significant overhead")
@each_strategy
@pytest.mark.parametrize("eagerly", [False, *exhaustive(True)], ids=["compiled", "eager"])
@pytest.mark.parametrize(
    "reduction", [None, "sum", *exhaustive("none", "mean"), "mean_with_sample_weight"]
)
def test_a_compiled_loss_may_have_any_reduction(strategy, reduction, eagerly):
    def make():
        model = network()
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(keras.optimizers.SGD(0.02), loss, run_eagerly=eagerly)
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


class Calls(keras.losses.MeanSquaredError):
    """A loss that reduces in its `__call__`, in one of several ways."""

    def __init__(self, way, reduction="none"):
        super().__init__(reduction=reduction)
        self.way, self.inner = way, keras.losses.MeanAbsoluteError(reduction="none")

    def __call__(self, y_true, y_pred, sample_weight=None):
        return {
            "a number for each example": lambda: keras.losses.mean_squared_error(y_true, y_pred),
            "super": lambda: super(Calls, self).__call__(y_true, y_pred, sample_weight),
            "mean": lambda: tf.reduce_mean(self.inner(y_true, y_pred)),
        }[self.way]()


@on_two_replicas
@pytest.mark.parametrize(
    "arguments",
    [["a number for each example"], ["super", "sum"], *exhaustive(["super"], ["mean"])],
    ids=str,
)
def test_a_compiled_loss_may_reduce_where_it_is_called(strategy, arguments, monkeypatch, recwarn):
    monkeypatch.delattr(whole_losses, "compute")  # None of these needs the others' examples.

    def make():
        model = network()
        model.compile(keras.optimizers.SGD(0.02), Calls(*arguments))
        return model

    check_as_plain(strategy, make, fit_and_evaluate)
    assert not [each for each in recwarn if "replicas" in str(each.message)]


class PerExample(keras.losses.Loss):
    """A loss of the user's own that leaves its numbers as they are."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)


class PerExampleCall(PerExample):
    """The same, without a word to Keras."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        losses = self.call(y_true, y_pred)
        return losses if sample_weight is None else losses * sample_weight


class Unreduced(keras.Model):
    """A model whose loss has a number for each example."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        assert y is not None and y_pred is not None
        return keras.losses.mean_squared_error(y["first"], y_pred["first"])


def two_outputs(loss, cls=keras.Model, **arguments):
    inputs = keras.Input((3,))
    hidden = layers.Dense(4, "tanh")(inputs)
    outputs = {name: layers.Dense(2, name=name)(hidden) for name in ("first", "second")}
    model = cls(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.02), loss, **arguments)
    return model


def fit_two_outputs(model):
    targets = {"first": Y, "second": -Y}
    weights = {"first": WEIGHTS[:, 0], "second": WEIGHTS[:, 1]}
    data = tf.data.Dataset.from_tensor_slices((X, targets, weights))
    # The last batch has one example, so that two of three replicas have none.
    short = data.take(9).batch(8)
    history = model.fit(data.batch(8), epochs=2, verbose=0).history
    return history, model.fit(short, verbose=0).history, model.evaluate(short, verbose=0)


BESIDE_A_SCALAR = {
    "Keras' own": lambda: keras.losses.MeanSquaredError(reduction=None),
    "own call": lambda: PerExample(reduction=None),
    "own __call__": PerExampleCall,
}


@on_three_replicas
@pytest.mark.parametrize(
    "make_loss", named(BESIDE_A_SCALAR, exhaustive=BESIDE_A_SCALAR.keys() - {"own __call__"})
)
def test_a_loss_for_each_example_may_be_beside_a_scalar(strategy, make_loss, recwarn, monkeypatch):
    """Keras adds the scalar to each, so that its gradient counts once for each example."""
    monkeypatch.delattr(whole_losses, "compute")

    def make():
        loss = {"first": make_loss(), "second": "mse"}
        return two_outputs(loss, loss_weights={"first": 0.5, "second": 0.2})

    check_as_plain(strategy, make, fit_two_outputs)
    assert not [each for each in recwarn if "replicas give" in str(each.message)]


@on_three_replicas
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_model_may_compute_a_loss_for_each_example(strategy, recwarn):
    check_as_plain(strategy, lambda: two_outputs(None, Unreduced), fit_two_outputs)
    assert not [each for each in recwarn if "replicas give" in str(each.message)]


class Contrast(keras.losses.Loss):
    """A number for each example, that depends on all of them."""

    def call(self, y_true, y_pred):
        distances = tf.reduce_sum(tf.square(y_pred[:, None] - y_pred[None]), axis=-1)
        return tf.reduce_mean(distances * (y_true[:, 0] - 0.5)[None], axis=-1)


@on_three_replicas
def test_a_loss_of_all_examples_may_be_beside_others(strategy, recwarn):
    def make():
        loss = {
            "first": Contrast(reduction=None),
            "second": keras.losses.MeanSquaredError(reduction=None),
        }
        return two_outputs(loss)

    check_as_plain(strategy, make, fit_two_outputs)
    assert not [each for each in recwarn if "replicas give" in str(each.message)]


class OwnStep(keras.Model):
    """A model whose train_step computes its loss and what it logs with a function."""

    def __init__(self, *args, reduce=None):
        super().__init__(*args)
        self.reduce = reduce
        self.loss_average = keras.metrics.Mean(name="average")

    @property
    def metrics(self):
        return [self.loss_average]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss, log = self.reduce(y, self(x, training=True), x)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss_average.update_state(log)
        return {"average": self.loss_average.result()}


FLOATS = [tf.float64, tf.float16, tf.bfloat16]


def mean_of_none(y, predictions, x):
    losses = keras.losses.MeanSquaredError(reduction="none")(y, predictions)
    return tf.reduce_mean(losses), losses


def sum_by_size(y, predictions, x):
    loss = keras.losses.MeanSquaredError(reduction="sum")(y, predictions)
    loss /= tf.cast(tf.shape(x)[0], loss.dtype)
    return loss, loss


def masked_mean(y, predictions, x):
    losses = keras.losses.MeanSquaredError(reduction="none")(y, predictions)
    loss = kerasdist.global_mean(losses, weights=x[:, 0] > 0)
    return loss, loss


def whole_sum(y, predictions, x):
    losses = keras.losses.MeanSquaredError(reduction="none")(y, predictions)
    loss = 0.1 * kerasdist.global_sum(losses)
    return loss, loss


def ratio_of_sums(y, predictions, x):
    overlap = kerasdist.global_sum(tf.nn.sigmoid(predictions) * tf.nn.sigmoid(y))
    loss = 1 - overlap / kerasdist.global_sum(tf.nn.sigmoid(predictions) + tf.nn.sigmoid(y))
    return loss, loss


def share_and_count(y, predictions, x):
    errors = tf.abs(y - predictions)
    is_near = tf.reduce_all(errors < 1.0, axis=-1)
    count = kerasdist.global_sum(tf.cast(is_near, tf.int32))
    return tf.reduce_mean(errors), kerasdist.global_mean(is_near) + 0.1 * count


REDUCTIONS = [mean_of_none, sum_by_size, masked_mean, whole_sum, ratio_of_sums, share_and_count]


@each_strategy
@pytest.mark.parametrize("reduce", REDUCTIONS, ids=lambda function: function.__name__)
def test_a_train_step_may_reduce_its_loss(strategy, reduce):
    def make():
        inputs = keras.Input((3,))
        model = OwnStep(inputs, layers.Dense(2)(layers.Dense(4, "tanh")(inputs)), reduce=reduce)
        model.compile(keras.optimizers.SGD(0.05))
        return model

    # Batches of one size: Keras' own Mean counts a batch as one number, whatever its size.
    check_as_plain(
        strategy,
        make,
        lambda model: (
            model.fit(X[:20], Y[:20], batch_size=5, epochs=2, shuffle=False, verbose=0).history
        ),
    )


class OwnStepWithLoss(keras.Model):
    """A model whose train_step takes the mean of its own examples."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


@each_strategy
def test_a_gradient_through_synchronized_statistics_knows_every_share(strategy):
    def make():
        inputs = keras.Input((3,))
        hidden = layers.BatchNormalization(synchronized=True)(layers.Dense(4, "tanh")(inputs))
        model = OwnStepWithLoss(inputs, layers.Dense(2)(hidden))
        model.compile(keras.optimizers.SGD(0.1))
        return model

    check_as_plain(strategy, make, fit)


class OwnStepWithPenalty(keras.Model):
    """A model whose loss knows how its output changes with its input."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                predictions = self(x, training=True)
            slopes = tf.reduce_sum(tf.square(inner.gradient(predictions, x)), axis=-1)
            errors = tf.reduce_mean(tf.square(predictions - y), axis=-1)
            loss = kerasdist.global_mean(errors + 0.1 * slopes)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


# The check before the first step divides a batch into shares of other sizes.
@pytest.mark.filterwarnings("ignore:The gradient over")
@each_strategy
@pytest.mark.parametrize("axis", [1, *exhaustive(-1)])
def test_a_gradient_of_a_gradient_goes_through_synchronized_statistics(strategy, axis):
    def make():
        inputs = keras.Input((3,))
        hidden = layers.Reshape((2, 3))(layers.Dense(6, "tanh")(inputs))
        hidden = layers.BatchNormalization(axis=axis, synchronized=True)(hidden)
        outputs = layers.Dense(2, "tanh")(layers.Flatten()(hidden))
        model = OwnStepWithPenalty(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.1))
        return model

    # Shares of one size: the inner gradient is of a sum, which is not weighed by them.
    check_as_plain(
        strategy,
        make,
        lambda model: model.fit(X[:18], Y[:18], batch_size=6, shuffle=False, verbose=0).history,
    )


@each_strategy
def test_a_loss_function_may_take_a_global_mean(strategy):
    def loss(y, predictions):
        losses = tf.reduce_mean(tf.square(y - predictions), axis=-1)
        return kerasdist.global_mean(losses, weights=y[:, 0] > 0)

    def make():
        model = network()
        model.compile(keras.optimizers.SGD(0.05), loss)
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


@pytest.mark.thorough
@each_strategy
@pytest.mark.parametrize("reduction", ["sum", *exhaustive("none")])
def test_a_loss_function_may_reduce_a_loss_of_keras(strategy, reduction):
    losses = keras.losses.MeanSquaredError(reduction=reduction)

    def loss(y, predictions):
        size = tf.cast(tf.size(y), y.dtype) / 2
        return tf.reduce_mean(losses(y, predictions)) / (size if reduction == "sum" else 1)

    def make():
        model = network()
        model.compile(keras.optimizers.SGD(0.05), loss)
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


@each_strategy
def test_a_loss_may_lack_the_batch_axis(strategy):
    def of_each_output(y, predictions):
        return tf.reduce_mean(tf.square(y - predictions), axis=0)

    def make():
        model = network()
        model.compile(keras.optimizers.SGD(0.05), of_each_output)
        return model

    check_as_plain(strategy, make, fit_and_evaluate)


def test_outside_of_steps_they_are_a_sum_and_a_mean():
    values = tf.constant([[1.0, 2.0], [3.0, 6.0]])

    assert float(kerasdist.global_sum(values)) == 12
    assert float(kerasdist.global_mean(values)) == 3
    assert float(kerasdist.global_mean(values, weights=[[1.0], [0.0]])) == 1.5
    assert float(kerasdist.global_mean(values, weights=0.0)) == 0


@pytest.mark.parametrize("values", [[True, False, True], [1, 0, 1]])
def test_what_is_counted_is_cast_and_floats_keep_their_dtype(values):
    for reduce, expected in ((kerasdist.global_sum, 2.0), (kerasdist.global_mean, 2 / 3)):
        assert reduce(values).dtype == keras.config.floatx()
        assert float(reduce(values)) == pytest.approx(expected)
        assert [reduce(tf.cast(values, dtype)).dtype for dtype in FLOATS] == FLOATS


@each_strategy
def test_a_loss_called_in_the_scope_is_that_of_its_examples(strategy):
    with strategy.scope():
        model = network()
        model.compile("sgd", "mse")
        own = keras.losses.MeanSquaredError()(tf.ones([4, 1]), tf.zeros([4, 1]))
        compiled = model.compute_loss(y=tf.ones([4, 1]), y_pred=tf.zeros([4, 1]))

    assert float(own) == float(compiled) == 1


@pytest.mark.thorough
@each_strategy
@pytest.mark.parametrize(
    "between", ["mask", *exhaustive("weighted mean", "synchronized statistics")]
)
def test_added_losses_stay_with_their_replica(strategy, between):
    """Whatever sends a message lets another replica go on with the same layers."""

    def make():
        loss = keras.losses.MeanSquaredError(
            reduction="mean_with_sample_weight" if between == "weighted mean" else "mean"
        )
        layer = {
            "weighted mean": layers.Activation("linear"),
            "synchronized statistics": layers.BatchNormalization(synchronized=True),
            "mask": layers.Masking(),
        }[between]
        model = keras.Sequential(
            [
                keras.Input((3, 2)),
                layers.Dense(4, "tanh", activity_regularizer=keras.regularizers.L2(0.5)),
                layer,
                layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.1)),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), loss)
        return model

    x = RNG.normal(size=(21, 3, 2)).astype("float32")
    x[RNG.random(21) < 0.4, 1:] = 0
    y = RNG.normal(size=(21, 3, 2)).astype("float32")
    check_as_plain(
        strategy,
        make,
        lambda model: (
            model.fit(
                x, y, sample_weight=WEIGHTS, batch_size=8, epochs=2, shuffle=False, verbose=0
            ).history
        ),
    )
