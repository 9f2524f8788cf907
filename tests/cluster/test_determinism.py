"""TensorFlow's `enable_op_determinism`, before and after `make_strategy`, on tasks of their own."""

import functools
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import callbacks, show
from tests import fork_server, strategies
from tests.cases import exhaustive
from tests.plain import check_as_plain

pytestmark = pytest.mark.processes

X = np.random.default_rng(0).normal(size=(50, 6)).astype("float32")
Y = np.tanh(X.sum(axis=1, keepdims=True))


def make_model():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def train(model):
    history = model.fit(X, Y, batch_size=16, epochs=3, validation_data=(X, Y), verbose=0).history
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=1).repeat().batch(8)
    model.fit(endless, steps_per_epoch=5, verbose=0)
    return history, model.predict(X, verbose=0)


def train_deterministically(*, is_before: bool) -> tuple:
    """Compares with plain Keras; returns the rate that was measured, and the tags in its file."""
    if is_before:
        tf.config.experimental.enable_op_determinism()
    strategy = kerasdist.make_strategy()
    if not is_before:
        tf.config.experimental.enable_op_determinism()
    check_as_plain(strategy, make_model, train)
    with strategy.scope():
        model = make_model()
    rate = callbacks.Throughput(every_steps=3)
    with tempfile.TemporaryDirectory() as folder:
        watch = [rate, callbacks.Summaries(folder, every_steps=3)]
        model.fit(X, Y, batch_size=5, verbose=0, callbacks=watch)
        tags = set(show.read(Path(folder))) if kerasdist.is_chief() else set()
    assert rate.last is not None
    return rate.last, tags


@pytest.mark.parametrize(
    ("workers", "is_before"),
    [("2 workers", False), *exhaustive(("1 worker + 1 ps", True), ("1 worker + 1 ps", False))],
)
def test_it_trains_as_plain_keras_without_clocks(workers, is_before):
    arguments = (strategies.PARAMETER_SERVERS | strategies.WORKER_DEPLOYMENTS)[workers]

    chief, *_ = fork_server.run_cluster(
        functools.partial(train_deterministically, is_before=is_before), **arguments
    )

    assert chief.exit_code == 0, chief.output[-4000:]
    rate, tags = chief.value
    assert rate.examples_per_second > 0
    assert rate.workers == ()
    assert "train/examples_per_second" in tags
    assert not any("share" in tag or "staleness" in tag for tag in tags)
