"""Callbacks on synchronous workers of parameter servers: they see and do what they do elsewhere."""

import contextlib
import functools
import io
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import callbacks
from tests import event_files, strategies

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
            ],
            name="net",
        )
        metrics = ["mae"] if kind is keras.Sequential else None
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=metrics)
    return model


def fit(strategy, batch_size, given, *, kind=keras.Sequential, x=X, epochs=EPOCHS, **arguments):
    model = model_in(strategy, kind)
    model.fit(
        *(x, Y[: len(x)]),
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
    return fit([], kind=OwnLogs, x=X[:24]).history.history


def see_averaged_losses(fit, _):
    model = fit([callbacks.LossAverages(decay=0.5)])
    return {name: model.history.history[name] for name in ("loss", "loss (raw)")}


def see_changed_updates(fit, _):
    average = callbacks.MovingAverage(decay=0.5, num_updates=False)
    given = [
        callbacks.TrainableScopes(["net/hidden/.*", "net/output/kernel"]),
        callbacks.GradientMultipliers({"net/hidden/kernel": 2.0}),
        callbacks.GradientClipping(global_norm=0.5),
        average,
    ]
    model = fit(given)
    return {
        **{f"weight {i}": each for i, each in enumerate(model.get_weights())},
        **average.get_state(),
    }


def see_non_finite_step(fit, _):
    x = X.copy()
    x[EXAMPLES_OF_UPDATE + 1] = np.nan
    guard = callbacks.StopOnNonFinite("restore")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit([guard], x=x)
    said = [str(each.message) for each in caught]
    return {
        "losses": model.history.history["loss"],
        "updates": float(model.optimizer.iterations),
        **{f"weight {i}": each for i, each in enumerate(model.get_weights())},
        "said": [each[: len("Step 2 is not finite: ")] for each in said if "not finite" in each],
        "goes on": ["the weights are those of step 1" in each for each in said[:1]],
    }


def see_summaries(fit, folder):
    fit([callbacks.Summaries(folder, every_steps=2)])
    numbers = event_files.numbers(folder / "train")
    # How fast it was differs, and whose batch the outputs of layers are of.
    alike = ("loss", "gradient_norm", "update_ratio", "learning_rate", "epoch_", "regular")
    histograms = event_files.histograms(folder / "train")
    return {
        "sparsity": sorted(numbers["sparsity/hidden"]),
        "histograms": {tag: sorted(each) for tag, each in histograms.items()},
        **{tag: each for tag, each in numbers.items() if tag.startswith(alike)},
    }


def see_throughput(fit, _):
    throughput = callbacks.Throughput(every_steps=2)
    history = fit([throughput]).history.history
    assert throughput.last is not None
    return {
        "num_steps": throughput.last.num_steps,
        "num_examples": throughput.last.num_examples,
        "is_fast": [each > 0 for each in history["examples_per_second"]],
    }


SEEN = {
    "FirstStepProof": see_proof,
    "LossAverages": see_averaged_losses,
    "ProfilerTrace": see_traces,
    "StopOnNonFinite": see_non_finite_step,
    "Summaries": see_summaries,
    "Throughput": see_throughput,
    "logs of its own": see_own_logs,
    "changes of the update": see_changed_updates,
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
    is_number = np.issubdtype(np.asarray(seen).dtype, np.floating)
    return pytest.approx(seen, rel=1e-4, abs=1e-6) if is_number else seen
