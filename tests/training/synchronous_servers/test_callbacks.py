"""Callbacks on synchronous workers of parameter servers: they see and do what they do elsewhere."""

import contextlib
import functools
import io
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests import strategies

X = np.random.default_rng(0).normal(size=(26, 3)).astype("float32")
Y = X @ np.array([[1], [2], [-1]], "float32")
EXAMPLES_OF_UPDATE = 8
EPOCHS = 2


class OwnLogs(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"own": loss, "parts": {"largest": tf.reduce_mean(x), "count": 3}}


def model_in(strategy, kind):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = kind(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, "tanh", name="hidden", kernel_regularizer="l2"),
                keras.layers.Dense(1, name="output"),
            ]
        )
        metrics = ["mae"] if kind is keras.Sequential else None
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics)
    return model


def fit(
    strategy,
    batch_size,
    given,
    *,
    kind=keras.Sequential,
    num_examples=26,
    epochs=EPOCHS,
    **arguments,
):
    model = model_in(strategy, kind)
    model.fit(
        *(X[:num_examples], Y[:num_examples]),
        batch_size=batch_size,
        **{"epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": given, **arguments},
    )
    return model


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


# What follows is called as see(fit, folder), where fit(callbacks) trains. It returns what must be
# the same on one device.


def see_proof(fit, _):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        fit([callbacks.FirstStepProof()])
    return printed.getvalue().partition(":")[0]


def see_traces(fit, folder):
    fit([callbacks.ProfilerTrace(folder, at_steps=[3])])
    return [name.split("/")[-1] for name in files_in(folder) if name.endswith("json")]


def see_own_logs(fit, _):
    return fit([], kind=OwnLogs, num_examples=24).history.history


def see_averaged_losses(fit, _):
    model = fit([callbacks.LossAverages(decay=0.5)])
    return {name: model.history.history[name] for name in ("loss", "loss (raw)")}


SEEN = {
    "FirstStepProof": see_proof,
    "LossAverages": see_averaged_losses,
    "ProfilerTrace": see_traces,
    "logs of its own": see_own_logs,
}


def see_all(strategy, batch_size=EXAMPLES_OF_UPDATE // 2):
    found = {}
    for name, see in SEEN.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = see(functools.partial(fit, strategy, batch_size), Path(folder))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("workers", list(strategies.SYNCHRONOUS))
def test_each_callback_sees_what_it_sees_on_one_device(workers):
    (found,) = strategies.run_on_workers(see_all, workers)

    expected = see_all(strategies.get("one device"), EXAMPLES_OF_UPDATE)
    for name, seen in expected.items():
        assert found[name] == approximately(seen), name


def approximately(seen):
    if isinstance(seen, dict):
        return {key: approximately(each) for key, each in seen.items()}
    return (
        pytest.approx(seen, rel=1e-5, abs=1e-6)
        if np.issubdtype(type(np.ravel(seen)[0]), np.floating)
        else seen
    )
