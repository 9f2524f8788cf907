"""A program that means the whole batch gets it, on every replica, and the weights of one device."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from kerasdist import callbacks
from tests.cases import marked
from tests.plain import check_as_plain, check_workers
from tests.strategies import on_three_replicas, on_workers
from tests.warned import warned_by

REPEATED = "each replica computes the whole batch"
RNG = np.random.default_rng(8)
# The last batch has two examples, for three replicas.
X = RNG.normal(size=(42, 6)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")
FIT = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}


def encoder(num_outputs=4, *more):
    return keras.Sequential(
        [layers.Input((6,)), layers.Dense(8, "tanh"), *more, layers.Dense(num_outputs)]
    )


class Own(keras.Model):
    """A model with a train_step that takes one gradient of `loss_of`."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder()
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.encoder(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        self.update(loss, tape.gradient(loss, self.encoder.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def loss_of(self, x, y):
        raise NotImplementedError

    def update(self, loss, gradients):
        self.optimizer.apply_gradients(
            zip(gradients, self.encoder.trainable_variables, strict=True)
        )


class CrossCorrelation(keras.losses.Loss):
    """That of Barlow Twins: of the outputs for two views of a batch, normalized over it."""

    def call(self, y_true, y_pred):
        first, second = (
            (each - tf.reduce_mean(each, axis=0)) / (tf.math.reduce_std(each, axis=0) + 1e-3)
            for each in (y_true, y_pred)
        )
        correlations = tf.matmul(first, second, transpose_a=True) / 10.0
        return tf.reduce_sum(tf.square(correlations - tf.eye(4)))


class BarlowTwins(Own):
    def loss_of(self, x, y):
        return self.loss(self.encoder(x + 0.1, training=True), self.encoder(x, training=True))


class MomentumContrast(Own):
    """MoCo: a queue of the features of earlier batches, and an encoder that follows."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder(4, layers.Dropout(0.1))
        self.follower = keras.models.clone_model(self.encoder)
        rows = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
        self.queue = tf.Variable(tf.math.l2_normalize(rows, axis=1), trainable=False)

    def loss_of(self, x, y):
        keys = tf.math.l2_normalize(self.follower(1.1 * x, training=True), axis=1)
        queries = tf.math.l2_normalize(self.encoder(x, training=True), axis=1)
        alike = tf.reduce_sum(queries * keys, axis=1, keepdims=True)
        logits = tf.concat([alike, tf.matmul(queries, self.queue, transpose_b=True)], axis=1)
        self.queue.assign(tf.concat([keys, self.queue], axis=0)[:32])
        return -tf.reduce_mean(tf.nn.log_softmax(10.0 * logits)[:, 0])

    def update(self, loss, gradients):
        super().update(loss, gradients)
        for follower, leader in zip(self.follower.weights, self.encoder.weights, strict=True):
            follower.assign(0.9 * follower + 0.1 * leader)


class MaskedMean(Own):
    def loss_of(self, x, y):
        mask = tf.cast(x[:, 0] > 0, x.dtype)
        errors = tf.reduce_mean(tf.square(self(x, training=True) - y), axis=1)
        return tf.reduce_sum(mask * errors) / (tf.reduce_sum(mask) + 1e-6)


class PairsOfTen(Own):
    """A step that knows the size of its batches, as `tf.random.normal((BATCH_SIZE, 2))` does."""

    def loss_of(self, x, y):
        pairs = tf.reshape(self(x, training=True), (5, 2, 4))
        return tf.reduce_mean(tf.square(pairs[:, 0] - pairs[:, 1]))


class UpdatesIfLarge(Own):
    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x, training=True) - y))

    def update(self, loss, gradients):
        def update():
            super(UpdatesIfLarge, self).update(loss, gradients)
            return True

        tf.cond(loss > 0.5, update, lambda: False)


class InnerLoop(Own):
    """Reptile: some updates in a loop, and a part of the way that they have led."""

    def train_step(self, data):
        x, y = data
        weights = self.encoder.trainable_variables
        before = [tf.identity(each) for each in weights]

        def update(count):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * gradient)
            return [count + 1]

        tf.while_loop(lambda count: count < 3, update, [tf.constant(0)])
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value + 0.5 * (weight - value))
        self.tracker.update_state(tf.reduce_mean(tf.square(self(x) - y)))
        return {"loss": self.tracker.result()}


class Reweighted(Own):
    """Learns how much each example counts: by a gradient of what a gradient has made."""

    def train_step(self, data):
        x, y = data
        *_, kernel, bias = weights = self.encoder.trainable_variables
        marks = tf.zeros(tf.shape(x)[:1])
        with tf.GradientTape() as outer:
            outer.watch(marks)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(marks * self.errors_of(x, y))
            *_, of_kernel, of_bias = tape.gradient(loss, weights)
            hidden = self.encoder.layers[0](x)
            outputs = hidden @ (kernel - 0.1 * of_kernel) + bias - 0.1 * of_bias
            afterwards = tf.reduce_mean(tf.square(outputs - y))
        wanted = tf.nn.relu(-outer.gradient(afterwards, marks))
        wanted /= tf.reduce_sum(wanted) + 1e-8
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(wanted * self.errors_of(x, y))
        self.update(loss, tape.gradient(loss, weights))
        return {"weighted": loss}

    def errors_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x) - y), axis=-1)


class Attention(layers.Layer):
    """Between the examples of a batch."""

    def call(self, x):
        return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x)


class RandomPairs(layers.Layer):
    """Adds to each example what random others of the batch are."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, x):
        positions = tf.range(tf.shape(x)[0])
        for order in (
            keras.random.shuffle(positions, seed=self.seeds),
            tf.random.shuffle(positions),
            tf.random.experimental.index_shuffle(
                positions, tf.cast(self.seeds.next(), tf.int32), positions[-1]
            ),
        ):
            x += 0.5 * tf.gather(x, order)
        return x


def compiled(model_class, **arguments):
    def make():
        model = model_class()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), **arguments)
        return model

    return make


def attentive(layer=Attention, **arguments):
    model = encoder(1, layer())
    model.compile("adam", "mse", metrics=["mae", keras.metrics.AUC(from_logits=True)], **arguments)
    return model


def stateful():
    model = keras.Sequential(
        [
            layers.Input(batch_shape=(10, 3, 2)),
            layers.LSTM(4, stateful=True),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def fit(model):
    return model.fit(X[:40], Y[:40], **FIT).history


def fit_sequences(model):
    return model.fit(X[:40].reshape(40, 3, 2), Y[:40], **FIT).history


def fit_and_evaluate(model):
    history = model.fit(X, Y, validation_data=(X[:9], Y[:9]), **FIT).history
    numbers = (
        model.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True),
        model.train_on_batch(X[:7], Y[:7], return_dict=True),
        model.test_on_batch(X[:8], Y[:8], return_dict=True),
        model.fit(X, Y, **FIT).history,
    )
    return [list(each.values()) for each in (history, *numbers)]


PROGRAMS = {
    "Barlow Twins": (compiled(BarlowTwins, loss=CrossCorrelation()), fit),
    "MoCo": (compiled(MomentumContrast), fit),
    "several steps in a call": (compiled(MomentumContrast, steps_per_execution=3), fit),
    "eager": (compiled(MomentumContrast, run_eagerly=True), fit),
    "mean over a mask": (compiled(MaskedMean), fit),
    "loss scale": (compiled(MaskedMean, auto_scale_loss=True), fit),
    "size of the batch": (compiled(PairsOfTen), fit),
    "update under a condition": (compiled(UpdatesIfLarge), fit),
    "updates in a loop": (compiled(InnerLoop), fit),
    "gradient of a gradient": (compiled(Reweighted), fit),
    "attention between examples": (attentive, fit_and_evaluate),
    "attention, several steps": (lambda: attentive(steps_per_execution=4), fit_and_evaluate),
    "random pairs": (lambda: attentive(RandomPairs), fit_and_evaluate),
    "stateful": (stateful, fit_sequences),
}


# Of ways to train, or of losses, that others have together with what is asked there.
FURTHER = {
    "attention, several steps",
    "stateful",
    "eager",
    "loss scale",
    "mean over a mask",
    "Barlow Twins",
}


@on_three_replicas
@pytest.mark.parametrize("name", marked(PROGRAMS, exhaustive=FURTHER))
def test_the_program_of_one_device_gets_the_whole_batch_on_every_replica(strategy, name):
    make, run = PROGRAMS[name]
    texts = warned_by(lambda: check_as_plain(strategy, make, run))
    assert any(REPEATED in text for text in texts)


def fit_on(strategy, name):
    make, run = PROGRAMS[name]
    keras.utils.set_random_seed(4)
    with strategy.scope() if hasattr(strategy, "cluster") else contextlib.nullcontext():
        model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(model), [np.asarray(each) for each in model.weights]


def fit_all(strategy):
    return [
        fit_on(strategy, name)
        for name in (
            *("MoCo", "size of the batch", "mean over a mask", "attention between examples"),
            *("update under a condition", "random pairs"),
        )
    ]


@on_workers
def test_so_do_the_replicas_of_several_workers(workers):
    check_workers(workers, fit_all)


def normalized():
    model = encoder(1, layers.BatchNormalization(), Attention())
    model.compile("sgd", "mse")
    return model


@on_three_replicas
def test_batches_are_normalized_as_on_one_device_and_nobody_is_warned_of_parts(strategy):
    texts = warned_by(lambda: check_as_plain(strategy, normalized, fit_and_evaluate))

    assert any(REPEATED in text for text in texts)
    assert not any("Batch normalization" in text for text in texts)


class Clipped(keras.callbacks.Callback):
    """What stands for `GradientClipping` on one device."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.global_clipnorm = 0.05


@on_three_replicas
def test_callbacks_of_the_update_see_the_gradient_of_the_whole_batch(strategy, tmp_path):
    ours = [
        callbacks.StopOnNonFinite(),
        callbacks.GradientClipping(global_norm=0.05),
        callbacks.Summaries(tmp_path, every_steps=2),
    ]

    def run(model):
        given = ours if model.distribute_strategy is strategy else [Clipped()]
        return model.fit(X, Y, callbacks=given, **FIT).history

    texts = warned_by(lambda: check_as_plain(strategy, compiled(MomentumContrast), run))
    assert any(REPEATED in text for text in texts)


@on_three_replicas
def test_a_step_that_is_not_finite_is_left_out_on_every_replica(strategy):
    with strategy.scope():
        model = attentive()
    x = X.copy()
    x[15] = np.nan

    def run():
        named = "Step 2 is not finite on replicas 0, 1, 2 of 3"
        with pytest.raises(FloatingPointError, match=named):
            model.fit(x, Y, callbacks=[callbacks.StopOnNonFinite()], **FIT)

    assert any(REPEATED in text for text in warned_by(run))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


class Mistaken(Own):
    def loss_of(self, x, y):
        return self.no_such_loss(x, y)


@on_three_replicas
def test_a_step_that_fails_with_the_whole_batch_too_ends_with_its_own_error(strategy):
    with strategy.scope():
        model = compiled(Mistaken)()

    def run():
        with pytest.raises(AttributeError, match="no_such_loss"):
            fit(model)

    assert not any(REPEATED in text for text in warned_by(run))
    assert not model.train_function.is_repeated


@on_three_replicas
def test_means_over_the_examples_are_divided_over_the_replicas(strategy):
    def run(model):
        history = fit(model)
        assert not getattr(model.train_function, "is_repeated", False)
        return history

    texts = warned_by(lambda: check_as_plain(strategy, compiled(UpdatesOnMeans), run))
    assert not any(REPEATED in text for text in texts)


class UpdatesOnMeans(Own):
    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x, training=True) - y))


class CountsSteps(Own):
    """A model that counts in Python, as a step may that runs eagerly."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.seen = []

    def loss_of(self, x, y):
        self.count += 1
        self.seen = [*self.seen, x][-2:]
        x = tf.concat(self.seen, axis=0)
        return tf.reduce_mean(tf.square(self(x, training=True) - 1.0)) / self.count

    def update(self, loss, gradients):
        if self.count % 3:
            super().update(loss, gradients)


class CountsCalls(layers.Layer):
    def __init__(self):
        super().__init__()
        self.count = 0

    def call(self, x, training=False):
        self.count += training
        return x * 0.9**self.count


def counting_layer(**arguments):
    model = encoder(1, CountsCalls())
    model.compile("sgd", "mse", **arguments)
    return model


COUNTING = {
    "step": (compiled(CountsSteps, run_eagerly=True), lambda model: [model.count, len(model.seen)]),
    "layer": (
        lambda: counting_layer(run_eagerly=True),
        lambda model: [layer.count for layer in model.layers if isinstance(layer, CountsCalls)],
    ),
}


@on_three_replicas
@pytest.mark.parametrize("name", COUNTING)
def test_what_an_eager_step_counts_in_python_is_counted_once(strategy, name):
    make, count = COUNTING[name]

    def run(model):
        return fit(model), count(model)

    texts = warned_by(lambda: check_as_plain(strategy, make, run))
    named = [text for text in texts if "each of 3 replicas changes 'count' of" in text]
    assert len(named) == 1
    assert REPEATED in named[0]
