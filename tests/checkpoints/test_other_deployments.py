"""A training goes on with another number of replicas: what each of them held becomes what it was.

The table is all kinds of state times pairs of deployments. The truth is plain Keras, or one device
where callbacks of ours take part, in a run that nobody has interrupted.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest

from kerasdist.callbacks import Checkpoint, GradientAccumulation, LossAverages, MovingAverage
from tests import strategies
from tests.cases import crossed
from tests.strategies import each_cluster, run_on_workers

X = np.random.default_rng(0).normal(size=(84, 4)).astype("float32")
Y = np.clip(X[:, :1] * 3, 0, 1)
LOCAL = ["one device", "2 replicas", "3 replicas"]
# Of the eighth step; the checkpoint before has 101 examples in all, which no number here divides.
_STOP = 8


class Interrupted(Exception):
    """A program is killed."""


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` in the middle of the second epoch."""

    def on_train_begin(self, logs=None):
        self.left = _STOP

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


class Count(keras.metrics.Metric):
    """Adds up the examples of each batch that it sees."""

    def __init__(self, name, dtype="float32"):
        super().__init__(name=name)
        self.counted = self.add_variable((), initializer="zeros", name="counted", dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.add(keras.ops.shape(y_true)[0])

    def add(self, number):
        self.counted.assign_add(keras.ops.cast(number, self.counted.dtype))

    def result(self):
        return keras.ops.cast(self.counted, "float32")


class Largest(keras.metrics.Metric):
    """The largest error so far, and the mean error of the last batch."""

    def __init__(self):
        super().__init__(name="largest")
        self.error = self.add_variable((), initializer="zeros", name="error")
        self.last = self.add_variable((), initializer="zeros", name="last")

    def update_state(self, y_true, y_pred, sample_weight=None):
        errors = keras.ops.abs(y_true - y_pred)
        self.error.assign(keras.ops.maximum(self.error, keras.ops.max(errors)))
        self.last.assign(keras.ops.mean(errors))

    def result(self):
        return {"largest": self.error, "last": self.last}


def rmse(y_true, y_pred):
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred)))


class Keep(keras.layers.Layer):
    """Keeps what it has seen in weights of each kind."""

    def build(self, shape):
        def weight(name, aggregation, dtype="float32"):
            kept = {"name": name, "aggregation": aggregation, "dtype": dtype}
            return self.add_weight(shape=(), initializer="zeros", trainable=False, **kept)

        self.sums = [weight("sum", "sum"), weight("number", "sum", "int32")]
        self.mean, self.steps = weight("mean", "mean"), weight("steps", "only_first_replica")

    def call(self, x, training=False):
        if training:
            for each in self.sums:
                each.assign_add(keras.ops.cast(keras.ops.shape(x)[0], each.dtype))
            self.mean.assign(0.9 * self.mean + keras.ops.mean(x))
            self.steps.assign_add(1.0)
        return x


class Counts(keras.Model):
    """Updates a metric of its own by another method than `update_state`."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.own = Count("own")

    def train_step(self, data):
        self.own.add(keras.ops.shape(data[0])[0])
        return super().train_step(data)


def every_state(is_ours):
    """Returns a model with states of every kind, and its optimizer."""
    inputs = keras.Input((4,))
    x = Keep()(keras.layers.Dense(3, "tanh")(inputs))
    x = keras.layers.BatchNormalization(synchronized=is_ours)(x)
    model = Counts(inputs=inputs, outputs=keras.layers.Dense(1)(x))
    return model, keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9), ()


def accumulated(is_ours):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    return model, keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), ()


def callbacks_of_ours(is_ours):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    callbacks = [GradientAccumulation(2), MovingAverage(0.9), LossAverages(decay=0.9)]
    return model, keras.optimizers.SGD(0.01, momentum=0.9), callbacks


class Fixed(keras.Model):
    """Knows the batch size, so that each replica computes the whole batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(keras.ops.reshape(x, (14, 4)))


def whole_batches(is_ours):
    return Fixed(), keras.optimizers.Adam(0.01), ()


def train(strategy, make, *callbacks):
    """Trains a new model; returns its history and all its state."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model, optimizer, more = make(strategy is not None)
        metrics = ["mae", keras.metrics.AUC(name="auc"), Count("n"), Count("ints", "int64")]
        model.compile(optimizer, "mse", metrics=[*metrics, Largest(), rmse])
    fit = {"batch_size": 14 if make is whole_batches else 17, "epochs": 2, "shuffle": False}
    history = model.fit(X, Y, callbacks=[*callbacks, *more], verbose=0, **fit).history
    states = [each.get_state() for each in more if hasattr(each, "get_state")]
    state = [model.get_weights(), [np.asarray(each) for each in optimizer.variables], states]
    return history, state


def interrupt(strategy, folder, make=every_state):
    with pytest.raises(Interrupted):
        train(strategy, make, Checkpoint(folder, every_steps=3), Interrupt())


def resume(strategy, folder, make=every_state):
    checkpoint = Checkpoint(folder, every_steps=3)
    found = train(strategy, make, checkpoint)
    assert checkpoint.resumed_from
    return found


@functools.cache
def truth(make=every_state):
    return train(strategies.get("one device") if make is callbacks_of_ours else None, make)


def assert_is(found, expected):
    (history, state), (history_of_truth, state_of_truth) = found, expected
    for name, values in history_of_truth.items():
        ours, theirs = (keras.tree.flatten(each) for each in (history[name], values))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)
    for ours, theirs in zip(*map(keras.tree.flatten, (state, state_of_truth)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*each replica")
@pytest.mark.parametrize(
    ("make", "first", "second"),
    crossed(
        [every_state, accumulated, callbacks_of_ours, whole_batches],
        LOCAL,
        LOCAL,
        kept=[
            (every_state, "one device", "3 replicas"),
            (every_state, "3 replicas", "one device"),
            (accumulated, "one device", "2 replicas"),
            (callbacks_of_ours, "2 replicas", "one device"),
            (whole_batches, "2 replicas", "one device"),
        ],
    ),
)
def test_on_one_machine(make, first, second, tmp_path):
    interrupt(strategies.get(first), tmp_path, make)

    found = resume(strategies.get(second), tmp_path, make)

    assert_is(found, truth(make))


def on_cluster(folders, own, strategy):
    """Resumes what others have begun, and leaves something to resume."""
    found = [resume(strategy, folder) for folder in folders]
    interrupt(strategy, own)
    return found


@each_cluster
def test_between_one_machine_and_a_cluster(workers, tmp_path):
    folders = [tmp_path / "one device", tmp_path / "2 replicas"]
    for folder in folders:
        interrupt(strategies.get(folder.name), folder)
    own = tmp_path / "cluster"

    answers = run_on_workers(functools.partial(on_cluster, folders, own), workers)
    back = resume(strategies.get("one device"), own)

    for found in [back, *[each for answer in answers for each in answer]]:
        assert_is(found, truth())
