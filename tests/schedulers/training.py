"""The script that the launchers start, and what it makes without one: plain Keras on one device."""

import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

_START_SECS = 200
_STRATEGY = "strategy = kerasdist.make_strategy()\n"
_SCRIPT = f"""
import os
import signal
import time

import keras
import numpy as np

import kerasdist

os.chdir(os.environ.get("FOLDER", "."))  # Ray starts its workers elsewhere.
{_STRATEGY}keras.utils.set_random_seed(0)
with strategy.scope():
    layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def note(text):
    if kerasdist.is_chief():
        with open("steps.txt", "a") as file:
            file.write(text)


class Disturbance(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        note("start ")

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        note(f"{{step}} ")
        kills = str(step) == os.environ.get("KILL_AT") and not kerasdist.is_chief()
        if kills and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists("slow"):
            time.sleep(float(open("slow").read()))


checkpoint = kerasdist.callbacks.Checkpoint(os.environ.get("CHECKPOINTS", "run"), every_steps=2)
callbacks = [Disturbance(), checkpoint]
history = model.fit(x, x.sum(axis=1), batch_size=16, epochs=6, callbacks=callbacks, verbose=2)
loss, weights = history.history["loss"], model.get_weights()
if kerasdist.is_chief():
    np.savez("result.npz", loss, *weights)
"""


def write(path: Path) -> None:
    """Writes the script."""
    path.write_text(_SCRIPT)


def attempts(folder: Path) -> list[list[int]]:
    """Returns the steps of each start of the script, as the chief has counted them."""
    path = folder / "steps.txt"
    _, *starts = path.read_text().split("start") if path.exists() else [""]
    return [[int(step) for step in steps.split()] for steps in starts]


def wait_for_attempt(folder: Path, number: int, *, steps: int) -> None:
    """Waits until a start of the script, counted from 1, has made some steps."""
    end = time.monotonic() + _START_SECS
    while len([*attempts(folder), *[[]] * number][number - 1]) < steps:
        assert time.monotonic() < end, f"{attempts(folder)}: start {number} is late."
        time.sleep(0.1)


def assert_equals_one_device(folder: Path) -> None:
    """Compares the history and the weights that the script has left with those of plain Keras."""
    with np.load(folder / "result.npz") as file:
        for ours, theirs in zip(file.values(), _plain(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@functools.cache
def _plain() -> list[np.ndarray]:
    program = _SCRIPT.replace(_STRATEGY, "").replace("strategy.scope()", "contextlib.nullcontext()")
    program = program.replace("callbacks=callbacks, ", "").replace("verbose=2", "verbose=0")
    names: dict[str, Any] = {"contextlib": contextlib}
    exec(program.partition("if kerasdist.is_chief():\n    np.savez")[0], names)
    return [np.asarray(names["loss"]), *names["weights"]]
