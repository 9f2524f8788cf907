"""One worker and one parameter server give what plain Keras gives: programs of one cluster."""

import functools
import re
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import testing
from tests.plain import check_as_plain

# What several workers and parameter servers show in other tests, here of one worker alone.
pytestmark = pytest.mark.exhaustive

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
IDS = np.array([3, 5, 7])[np.arange(20) % 3].reshape(-1, 1)
WORDS = np.array(["x", "y", "z"])[np.arange(20) % 3].reshape(-1, 1)
PROGRAMS = {}


def program(make):
    """Notes what returns (make, run) of `check_as_plain`, and makes all that it needs anew."""
    PROGRAMS[make.__name__] = make
    return make


@keras.saving.register_keras_serializable()
class LookUpInLoop(keras.layers.Layer):
    """Looks ids up in a tf.cond of a tf.while_loop, also through a tf.function."""

    def __init__(self):
        super().__init__()
        self.look_up = keras.layers.IntegerLookup(vocabulary=[3, 5, 7])
        self.look_up_in_function = tf.function(lambda ids: self.look_up(ids))

    def call(self, ids):
        def body(step, total):
            found = tf.cond(
                step % 2 == 0, lambda: self.look_up_in_function(ids), lambda: 2 * self.look_up(ids)
            )
            return step + 1, total + tf.cast(found, tf.float32)

        start = [0, tf.zeros_like(ids, tf.float32)]
        return tf.while_loop(lambda step, total: step < 3, body, start)[1]

    def compute_output_shape(self, shape):
        return shape


@program
def lookups():
    def make():
        ids, words = keras.Input((1,), dtype="int64"), keras.Input((1,), dtype="string")
        known_ids = keras.layers.IntegerLookup(vocabulary=[3, 5, 7])(ids)
        known_words = keras.layers.StringLookup(vocabulary=["x"], output_mode="one_hot")(words)
        embedded = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(known_ids))
        features = [embedded, known_words, LookUpInLoop()(ids)]
        output = keras.layers.Dense(1)(keras.layers.Concatenate()(features))
        model = keras.Model([ids, words], output)
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    def run(model):
        arrays = [IDS, tf.constant(WORDS)]  # Of unknown length for Keras: a loop with a condition.
        history = model.fit(arrays, Y, batch_size=8, shuffle=False, epochs=2, verbose=0).history
        return history, model.predict(arrays, verbose=0)

    return make, run


def make_dense():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def halve(variable):
    variable.assign(variable.numpy() / 2)


@program
def variable_of_the_data():
    def run(model):
        rate = tf.Variable(1.0)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x * rate, y)).batch(8)
        fade = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: halve(rate))
        return model.fit(data, epochs=3, callbacks=[fade], verbose=0).history

    return make_dense, run


@program
def table_of_the_data():
    def run(model):
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        data = tf.data.Dataset.range(20).map(
            lambda i: (tf.gather(X, i), tf.reshape(table.lookup(i), [1]))
        )
        add = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, _: table.insert(tf.constant(epoch, tf.int64), 1.0)
        )
        return model.fit(data.batch(8), epochs=3, callbacks=[add], verbose=0).history

    return make_dense, run


@program
def random_generator_of_the_data():
    def run(model):
        generator = tf.random.Generator.from_seed(3)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        data = data.map(lambda x, y: (x + generator.normal(tf.shape(x)), y))
        return [model.fit(data, epochs=2, verbose=0).history for _ in range(2)]

    return make_dense, run


@program
def validation_with_what_is_shuffled_twice():
    def run(model):
        y = tf.data.Dataset.from_tensor_slices(Y).shuffle(20, seed=1)
        data = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(X), y).shuffle(20, seed=2)
        held_out = data.skip(12).batch(8)
        return model.fit(
            data.take(12).batch(8), validation_data=held_out, epochs=2, verbose=0
        ).history

    return make_dense, run


def make_with_two_outputs():
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"a": "mse", "b": "mae"})
    return model


class Batches(keras.utils.PyDataset):
    """20 examples in batches of 8, so that the last one has 4."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return X[rows], {"a": Y[rows], "b": Y[rows]}


def endless():
    while True:
        yield from (Batches()[index] for index in range(3))


@program
def losses_of_outputs():
    def run(model):
        return [
            model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history,
            model.fit(endless(), steps_per_epoch=3, epochs=2, verbose=0).history,
            model.evaluate(Batches(), return_dict=True, verbose=0),
        ]

    return make_with_two_outputs, run


class WithVariablesOfTensorFlow(keras.Model):
    """Updates a variable of TensorFlow's together with the weights, as code for Keras 2 does."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.log_variance = tf.Variable(0.0)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.square(self(x, training=True) - y))
            loss = tf.exp(-self.log_variance) * error + self.log_variance
        weights = [*self.trainable_variables, self.log_variance]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss, "log_variance": self.log_variance + 0.0}


@program
def variables_of_tensorflow():
    def make():
        model = WithVariablesOfTensorFlow()
        averages = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2}
        model.compile(keras.optimizers.AdamW(0.05, global_clipnorm=0.5, **averages))
        return model

    def run(model):
        is_ours = isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)
        ours = [kerasdist.callbacks.GradientMultipliers({".*kernel": 1.0})] if is_ours else []
        arguments = {"batch_size": 8, "shuffle": False, "verbose": 0}
        histories = [model.fit(X, Y, callbacks=each, **arguments).history for each in ([], ours)]
        model.compile("sgd")
        return [*histories, model.fit(X, Y, **arguments).history, model.log_variance.numpy()]

    return make, run


class WithMetricsOfTheStep(keras.Model):
    """Resets a metric, assigns to one, and computes with what one gives, before it is updated."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        names = ("of_batch", "smoothed", "weighing")
        self.of_batch, self.smoothed, self.weighing = map(keras.metrics.Mean, names)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        self.of_batch.reset_state()
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.abs(self(x, training=True) - y))
            loss = error / (1.0 + self.weighing.result())
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.of_batch.update_state(error)
        self.weighing.update_state(error)
        self.smoothed.total.assign(0.9 * self.smoothed.total + 0.1 * error)
        self.smoothed.count.assign(1.0)
        return {metric.name: metric.result() for metric in self.metrics} | {
            "perplexity": tf.exp(self.weighing.result())
        }


@program
def metrics_of_the_step():
    def make():
        model = WithMetricsOfTheStep()
        model.compile("sgd")
        return model

    arguments = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    return make, lambda model: model.fit(X, Y, **arguments).history


def make_small():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    return model


class FindRate(keras.callbacks.Callback):
    """Raises the learning rate in each step, and notes the losses."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append((logs or {})["loss"])
        optimizer = self.model.optimizer
        optimizer.learning_rate = 1.1 * float(optimizer.learning_rate.numpy())


class Cycle(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate.assign(0.01 * (1 + batch % 3))


def prune(model, batch, logs):
    model.set_weights([np.where(abs(each) < 0.2, 0, each) for each in model.get_weights()])
    model.stop_training = batch == 15


@program
def callbacks_that_change_what_the_next_step_reads():
    def run(model):
        arguments = {"batch_size": 1, "shuffle": False, "verbose": 0}
        find, cut = FindRate(), functools.partial(prune, model)
        pruned = keras.callbacks.LambdaCallback(on_train_batch_end=cut)
        histories = [
            model.fit(X, Y, callbacks=each, **arguments).history
            for each in ([kerasdist.callbacks.OnChief(find)], [Cycle()], [pruned])
        ]
        return histories, find.losses, model.optimizer.iterations.numpy()

    return make_small, run


def run_programs():
    strategy = kerasdist.make_strategy()
    return {name: _error_of(make, strategy) for name, make in PROGRAMS.items()}


def _error_of(make, strategy) -> str:
    try:
        check_as_plain(strategy, *make())
    except Exception:  # The others are to be seen as well.
        return traceback.format_exc()
    return ""


@functools.cache
def chief():
    chief, *_ = testing.run_cluster(run_programs, num_workers=1, num_ps=1, timeout_secs=200)
    assert chief.exit_code == 0, chief.output[-4000:]
    return chief


@pytest.mark.timeout(300)  # The first one waits for the cluster to be done.
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_plain_keras(name):
    assert chief().value[name] == ""


@pytest.mark.timeout(300)
def test_nobody_is_told_to_schedule_what_is_scheduled():
    assert "without using `ClusterCoordinator.schedule`" not in chief().output


@pytest.mark.timeout(300)
def test_steps_that_are_made_one_at_a_time_are_announced_with_the_reason():
    lines = re.findall("Steps: one at a time, because (.*) has a hook", chief().output)
    assert lines == ["FindRate", "Cycle", "LambdaCallback"]
