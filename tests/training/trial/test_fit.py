"""A step whose gradient is not that of the whole batch is named."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kerasdist
from kerasdist.training.losses import whole_losses
from tests.cases import exhaustive
from tests.plain import check_as_plain
from tests.strategies import on_three_replicas, on_two_replicas
from tests.training.step.reductions import (
    X,
    Y,
    contrast,
    global_masked_mean,
    masked_mean,
    mean,
    warnings_of_fit,
    whole_sum,
)
from tests.warned import warned_by


class OwnStep(keras.Model):
    """A model with random numbers of every origin in its train_step."""

    def __init__(self, *args, reduce):
        super().__init__(*args)
        self.reduce = reduce
        self.num_traces = tf.Variable(0, trainable=False)

    def train_step(self, data):
        x, y = data
        self.num_traces.assign_add(1)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            outputs += 0.1 * keras.random.normal(keras.ops.shape(y))
            outputs += 0.1 * tf.random.uniform(tf.shape(y))
            outputs += 0.1 * tf.random.gamma(tf.shape(y), 2.0)
            outputs += 0.1 * tf.random.poisson(tf.shape(y), 3.0)
            outputs += 0.1 * tf.cast(tf.random.categorical(tf.zeros_like(y), 2), tf.float32)
            # Columns, and rows that are put back.
            outputs += keras.random.shuffle(outputs, axis=1)
            order = tf.random.shuffle(tf.range(tf.shape(y)[0]))
            outputs = tf.gather(tf.gather(outputs, order), tf.argsort(order))
            loss = self.reduce(tf.reduce_mean(tf.square(outputs - y), axis=-1), outputs, x)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def make_own_step(reduce):
    inputs = keras.Input((3,))
    hidden = layers.Dropout(0.3)(layers.BatchNormalization()(layers.Dense(4, "tanh")(inputs)))
    model = OwnStep(inputs, layers.Dense(2)(hidden), reduce=reduce)
    model.compile("sgd")
    return model


@on_two_replicas
@pytest.mark.parametrize(
    ("reduce", "remedy"),
    [
        (whole_sum, r"a sum over the examples.*kerasdist\.global_sum\(values\)"),
        (masked_mean, r"kerasdist\.global_mean\(values, weights=mask\)"),
        (contrast, "compares those of one replica only, unless it is given to `compile`"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_no_mean_over_examples_is_named_with_the_remedy(strategy, reduce, remedy):
    keras.utils.set_random_seed(1)  # With rare weights a sum is less like one.
    with strategy.scope():
        model = make_own_step(reduce)

    with pytest.warns(UserWarning, match=f"The gradient over . replicas is not the one.*{remedy}"):
        model.fit(X, Y, batch_size=16, shuffle=False, verbose=0)


@on_two_replicas
@pytest.mark.parametrize("reduce", [mean, global_masked_mean], ids=lambda each: each.__name__)
def test_means_are_no_news_whatever_is_random(strategy, reduce):
    with strategy.scope():
        model = make_own_step(reduce)

    assert warnings_of_fit(model) == []


def average_of_tensorflow(losses, outputs, x):
    return tf.nn.compute_average_loss(losses)


def divided_by_the_strategys_number(losses, outputs, x):
    return tf.reduce_mean(losses) / tf.distribute.get_strategy().num_replicas_in_sync


def divided_by_the_contexts_number(losses, outputs, x):
    context: Any = tf.distribute.get_replica_context()
    return tf.reduce_mean(losses) / context.num_replicas_in_sync


def scaled_regularization(losses, outputs, x):
    return tf.reduce_mean(losses) + tf.nn.scale_regularization_loss(tf.reduce_mean(outputs**2))


@on_two_replicas
@pytest.mark.parametrize(
    "reduce",
    [
        average_of_tensorflow,
        scaled_regularization,
        *exhaustive(divided_by_the_strategys_number, divided_by_the_contexts_number),
    ],
    ids=lambda each: each.__name__,
)
def test_a_division_by_the_number_of_replicas_is_named(strategy, reduce):
    with strategy.scope():
        model = make_own_step(reduce)

    (message,) = warnings_of_fit(model)

    assert "Leave out the division of the loss by it" in message
    assert "a sum over the examples" not in message


def counted_replicas(losses, outputs, x):
    context: Any = tf.distribute.get_replica_context()
    count = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]))
    return tf.reduce_mean(losses) * count / context.num_replicas_in_sync


@on_two_replicas
def test_who_asks_for_the_number_of_replicas_alone_hears_nothing(strategy):
    with strategy.scope():
        model = make_own_step(counted_replicas)

    assert warnings_of_fit(model) == []


class ByHand(keras.Model):
    """A model that updates its weights by itself, as inner loops of meta-learning do."""

    def __init__(self, update):
        super().__init__()
        self.update = update
        self.dense, self.other = layers.Dense(2), layers.Dense(2)

    def call(self, inputs):
        return self.dense(inputs) + self.other(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            self.last_errors = self(x) - y
            loss = tf.reduce_mean(tf.square(self.last_errors))
        variables = self.dense.trainable_variables
        self.update(self, tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_descent(model, gradients, variables):
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.05 * gradient)


def own_slope(model, gradients, variables):
    """Descends along what it has computed from its examples without a tape."""
    variables[1].assign_sub(0.05 * tf.reduce_mean(model.last_errors, axis=0))


def signs_of_slope(model, gradients, variables):
    variables[1].assign_sub(0.05 * tf.sign(tf.reduce_mean(model.last_errors, axis=0)))


def averaged_descent(model, gradients, variables):
    context: Any = tf.distribute.get_replica_context()
    own_descent(model, context.all_reduce("MEAN", gradients), variables)


def there_and_back(model, gradients, variables):
    own_descent(model, gradients, variables)
    own_descent(model, [-gradient for gradient in gradients], variables)


def averaged_weights(model, gradients, variables):
    model.optimizer.apply(gradients, variables)
    for average, variable in zip(model.other.trainable_variables, variables, strict=True):
        average.assign(0.9 * average + 0.1 * tf.clip_by_value(variable, -1.0, 1.0))


def fit_by_hand(strategy, update, *, is_built):
    """Returns the warnings of a short training, and whether all replicas end with one weight."""
    keras.utils.set_random_seed(1)  # Signs may be alike by chance.
    with strategy.scope():
        model = ByHand(update)
        if is_built:
            model(X)
        model.compile("sgd")
    texts = warned_by(lambda: model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0))
    first, *others = strategy.experimental_local_results(model.dense.bias.value)
    are_equal = all(np.allclose(first.numpy(), each.numpy(), atol=1e-6) for each in others)
    return texts, are_equal


@on_two_replicas
@pytest.mark.parametrize("is_built", [*exhaustive(True), False], ids=["built", "not built"])
@pytest.mark.parametrize("update", [own_slope, signs_of_slope], ids=lambda each: each.__name__)
def test_weights_that_a_replica_updates_by_itself_are_named(strategy, update, is_built):
    (message,), are_equal = fit_by_hand(strategy, update, is_built=is_built)

    assert are_equal  # From then on: each replica has the whole batch.
    assert "Until you change it" in message
    assert "the trained weight 'by_hand" in message
    assert "optimizer.apply(gradients, variables)" in message


@on_two_replicas
@pytest.mark.parametrize(
    "update",
    [own_descent, averaged_descent, there_and_back, averaged_weights],
    ids=lambda each: each.__name__,
)
def test_weights_that_all_replicas_assign_alike_are_no_news(strategy, update):
    assert fit_by_hand(strategy, update, is_built=True) == ([], True)


class RunningNorm(layers.Layer):
    """A layer that subtracts the mean of what it has seen, kept in a weight and in a variable."""

    def __init__(self, mean_of):
        super().__init__()
        self.mean_of = mean_of

    def build(self, input_shape):
        self.mean = self.add_weight(shape=input_shape[1:], initializer="zeros", trainable=False)
        self.last: Any = tf.Variable(tf.zeros(input_shape[1:]), trainable=False)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        outputs = inputs - self.mean
        if training:
            self.last.assign(self.mean_of(inputs))
            self.mean.assign(0.9 * self.mean + 0.1 * self.last)
            self.count.assign_add(1.0)
        return outputs


def mean_of_replica(inputs):
    return tf.reduce_mean(inputs, axis=0)


def mean_of_replicas(inputs):
    context: Any = tf.distribute.get_replica_context()
    return context.all_reduce("MEAN", mean_of_replica(inputs))


def mean_of_batch(inputs):
    return tf.stack([kerasdist.global_mean(each) for each in tf.unstack(inputs, axis=1)])


@on_two_replicas
@pytest.mark.parametrize(
    ("mean_of", "number"),
    [(mean_of_replica, 1), (mean_of_replicas, 0), *exhaustive((mean_of_batch, 0))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_state_that_is_not_the_same_on_all_replicas_is_named(strategy, mean_of, number):
    with strategy.scope():
        norm = RunningNorm(mean_of)
        recurrent = [layers.Reshape((1, 3)), layers.GRU(2), layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((3,)), norm, *recurrent, layers.Dense(2)])
        model.compile("sgd", "mse")

    found = warnings_of_fit(model)

    assert len(found) == number
    assert all("to the state 'sequential" in each and " and 1 more is" in each for each in found)


@on_two_replicas
def test_what_was_told_of_a_model_is_mended_again_after_compile(strategy):
    def make():
        keras.utils.set_random_seed(0)
        norm = RunningNorm(mean_of_replica)
        model = keras.Sequential([keras.Input((3,)), norm, layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    plain = make()
    with strategy.scope():
        model = make()
    for each in (plain, model):
        found = warnings_of_fit(each)
        each.compile("sgd", "mse")
        assert warnings_of_fit(each) == []
        assert len(found) == (each is model)

    for ours, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


class SemiSupervised(keras.Model):
    """A model that learns from examples with labels and from others, of another batch size."""

    def train_step(self, data):
        unlabeled, (x, y) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y)) + tf.reduce_mean(
                tf.square(self(unlabeled))
            )
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@on_two_replicas
def test_two_batches_in_one_are_tried_in_their_proportion(strategy):
    with strategy.scope():
        inputs = keras.Input((3,))
        model = SemiSupervised(inputs, layers.Dense(2)(inputs))
        model.compile("sgd")
    unlabeled, labeled = map(tf.data.Dataset.from_tensor_slices, (X, (X, Y)))
    data = tf.data.Dataset.zip(unlabeled.batch(24), labeled.batch(6)).take(2)

    model.fit(data, shuffle=False, verbose=0)  # A warning is an error here.


class Triplets(keras.Model):
    """A model that learns from anchors, what is like and unlike them, and by how much."""

    def __init__(self, *args, reduce):
        super().__init__(*args)
        self.reduce = reduce

    def train_step(self, data):
        anchors, positives, negatives, margins = data
        with tf.GradientTape() as tape:
            near, far = (
                tf.reduce_sum(tf.square(self(anchors) - self(others)), axis=-1)
                for others in (positives, negatives)
            )
            loss = self.reduce(tf.nn.relu(near - far + margins))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@on_two_replicas
@pytest.mark.parametrize(("reduce", "number"), [(tf.reduce_mean, 0), (tf.reduce_sum, 1)])
def test_data_need_not_be_of_inputs_and_labels(strategy, reduce, number):
    with strategy.scope():
        inputs = keras.Input((3,))
        model = Triplets(inputs, layers.Dense(2)(inputs), reduce=reduce)
        model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices((X, X[::-1], X[::2].repeat(2, 0), X[:, 0]))

    texts = warned_by(lambda: model.fit(data.batch(16), shuffle=False, verbose=0))

    assert ["a sum over the examples" in text for text in texts] == [True] * number


@on_two_replicas
def test_a_loss_function_is_looked_at_too(strategy):
    def masked(y, predictions):
        mask = tf.cast(y[:, 0] > 0, y.dtype)
        losses = tf.reduce_mean(tf.square(y - predictions), axis=-1)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
        model.compile("sgd", masked)
    assert whole_losses.may_see_all(model)

    assert warnings_of_fit(model) == []  # From now on it sees all examples.
    assert not whole_losses.may_see_all(model)


def centered():
    def center(hidden):
        return hidden - keras.ops.mean(hidden, axis=0, keepdims=True)

    return [layers.Lambda(center)]


def softmax_over_examples():
    return [layers.Dense(5, activation=lambda hidden: keras.ops.softmax(hidden, axis=0))]


def regularized_by_the_mean():
    def penalty(hidden):
        return 3 * keras.ops.sum(keras.ops.square(keras.ops.mean(hidden, axis=0)))

    return [layers.Dense(5, activity_regularizer=penalty)]


@on_two_replicas
@pytest.mark.parametrize(
    "own", [softmax_over_examples, regularized_by_the_mean, *exhaustive(centered)]
)
def test_functions_in_layers_of_keras_are_looked_at_too(strategy, own):
    with strategy.scope():
        parts = [layers.Dense(4, "tanh"), *own(), layers.Dense(2)]
        model = keras.Sequential([keras.Input((3,)), *parts])
        model.compile("sgd", "mse")

    (message,) = warnings_of_fit(model)
    assert "compares those of one replica only" in message


@on_two_replicas
def test_operations_between_layers_are_looked_at_too(strategy):
    def fit(axis):
        with strategy.scope():
            inputs = keras.Input((3,))
            hidden = layers.Dense(4, "tanh")(inputs)
            hidden = hidden - keras.ops.mean(hidden, axis=axis, keepdims=True)
            model = keras.Model(inputs, layers.Dense(2)(hidden))
            model.compile("sgd", "mse")
        return warnings_of_fit(model)

    assert len(fit(axis=0)) == 1
    assert fit(axis=1) == []


@tf.custom_gradient
def clipped(values):
    """Returns `values`, and lets no large gradient through."""
    return tf.identity(values), lambda gradient: tf.clip_by_value(gradient, -0.01, 0.01)


def clipped_in_a_layer():
    middle = layers.Lambda(clipped, output_shape=(4,))
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4), middle, layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def clipped_in_the_loss():
    def loss(y, predictions):
        return tf.reduce_mean(tf.square(y - clipped(predictions)), axis=-1)

    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


@on_three_replicas
@pytest.mark.parametrize("make", [clipped_in_the_loss, *exhaustive(clipped_in_a_layer)])
def test_a_gradient_that_clips_sees_what_it_sees_on_one_device(strategy, make):
    def run(model):  # A warning is an error here.
        return model.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0).history

    check_as_plain(strategy, make, run)


class Normalizes(keras.optimizers.SGD):
    """Divides gradients by their norms, as those of the whole batch."""

    def apply(self, grads, trainable_variables=None):
        grads = [grad / (keras.ops.norm(grad) + 1e-3) for grad in grads]
        super().apply(grads, trainable_variables)


class DecaysBySign(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient + 0.1 * keras.ops.sign(variable), variable, learning_rate)


@on_two_replicas
def test_an_optimizer_that_changes_the_gradient_changes_that_of_one_device(strategy):
    def fit(optimizer):
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
            model.compile(optimizer(0.05), "mse")
        return warnings_of_fit(model)

    assert fit(Normalizes) == fit(DecaysBySign) == []


@on_two_replicas
def test_what_is_finite_on_one_device_alone_is_no_sum(strategy):
    def of_first_examples(losses, outputs, x):
        mask = tf.cast(x[:, 0] == X[0, 0], losses.dtype)  # An example of the first replica.
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    with strategy.scope():
        model = make_own_step(of_first_examples)

    (message,) = warnings_of_fit(model)

    assert "Only one of the two is finite" in message
    assert "a sum over the examples" not in message


def four_largest(losses, outputs, x):
    return tf.reduce_mean(tf.math.top_k(losses, 4).values)  # Seven examples are too few for both.


def of_the_last_examples(losses, outputs, x):
    mask = tf.cast(x[:, 0] == X[12, 0], losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def of_the_last_examples_or_nothing(losses, outputs, x):
    mask = tf.cast(tf.abs(x[:, 0] - X[12, 0]) < 1e-4, losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))


@on_two_replicas
@pytest.mark.parametrize(
    "reduce",
    [four_largest, *exhaustive(of_the_last_examples), of_the_last_examples_or_nothing],
    ids=lambda each: each.__name__,
)
def test_where_a_few_examples_say_nothing_all_of_the_batch_are_asked(strategy, reduce):
    with strategy.scope():
        model = make_own_step(reduce)

    (message,) = warnings_of_fit(model)

    assert "not the one that the whole batch gives" in message


@on_two_replicas
def test_a_bend_that_no_mean_of_a_few_reaches_shows_with_one_example_for_each_replica(strategy):
    def free_bits(losses, outputs, x):
        shift = tf.reduce_mean(outputs, axis=-1, keepdims=True)
        # Of the first example, one is -1.6; of more of them, no mean is below 0.2.
        rates = tf.reduce_mean(x + 1.0 + 0.01 * shift, axis=0)
        return tf.reduce_mean(losses) + tf.reduce_sum(tf.maximum(rates, 0.1))

    with strategy.scope():
        model = make_own_step(free_bits)

    (message,) = warnings_of_fit(model)

    assert "not the one that the whole batch gives" in message


@on_two_replicas
def test_labels_among_the_inputs_stay_exact(strategy):
    """Else nothing could be told from rounding."""

    def of_marked(losses, outputs, x):
        mask = tf.cast(tf.equal(x[:, 2], -9.0), losses.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(losses * mask), tf.reduce_sum(mask))

    marked = np.where(np.random.default_rng(4).random((64, 1)) < 0.5, -9.0, 0.5).astype("float32")
    with strategy.scope():
        model = make_own_step(of_marked)

    texts = warned_by(
        lambda: model.fit(np.hstack([X[:, :2], marked]), Y, batch_size=16, shuffle=False, verbose=0)
    )

    assert any("not the one that the whole batch gives" in each for each in texts)


class Amplifies(layers.Layer):
    """A layer that makes much of the last bits of its inputs, as a deep net with few examples."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, inputs):
        return tf.sin(self.factor * (inputs - tf.reduce_mean(inputs, axis=0)))


@on_three_replicas
def test_what_rounding_explains_is_no_news(strategy):
    """The mean of one replica is not that of all, too: it must be news without amplification."""

    def warnings_with(factor):
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), Amplifies(factor), layers.Dense(2)])
            model.compile("sgd", "mse")
        return warnings_of_fit(model)

    assert len(warnings_with(1.0)) == 1
    assert warnings_with(1e8) == []


@on_two_replicas
def test_what_cannot_be_tried_is_said(strategy):
    class Demanding(keras.Model):
        def train_step(self, data):
            if tf.executing_eagerly():
                raise NotImplementedError("no operation by itself")
            return super().train_step(data)

    with strategy.scope():
        inputs = keras.Input((3,))
        model = Demanding(inputs, layers.Dense(2)(inputs))
        model.compile("sgd", "mse")

    (warning,) = warnings_of_fit(model)
    assert "gradient of one device: NotImplementedError: no operation by itself" in warning


@on_two_replicas
def test_an_error_without_words_is_said_too(strategy):
    class Asserts(keras.Model):
        def train_step(self, data):
            if tf.executing_eagerly():
                raise AssertionError  # As `assert` does.
            return super().train_step(data)

    with strategy.scope():
        inputs = keras.Input((3,))
        model = Asserts(inputs, layers.Dense(2)(inputs))
        model.compile("sgd", "mse")

    (warning,) = warnings_of_fit(model)
    assert "gradient of one device: AssertionError. The results may differ." in warning
