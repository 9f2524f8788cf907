"""What checkpoints cost: the pause of a save, the time to go on from one, and their bytes.

    python benchmarks/checkpoint.py                    # about five minutes on two cores
    python benchmarks/checkpoint.py --units 256 --rounds 3

A dense network under Adam. Pause: how long the training stands still for a checkpoint, of which
there is one after every 25th step; and for one that is written beside the training, after the time
of 25 steps. Recovery: from the start of a process to the end of its first step, where it
goes on from a checkpoint in the middle of an epoch, over the same where it begins; a process each,
in turn. Bytes: those on the disk over those of weights, optimizer and metrics.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasdist
from kerasdist import callbacks

STEPS, EVERY, BATCH_SIZE, FEATURES = 100, 25, 32, 64


class End(keras.callbacks.Callback):
    """Ends the process at once after a number of steps, as KILL does."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if not self.steps:
            os._exit(0)


class TimedCheckpoint(callbacks.Checkpoint):
    """Notes how long each save between two steps holds up the training."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pauses = []

    def on_train_batch_begin(self, batch, logs=None):
        is_due, start = self._is_due, time.perf_counter()
        super().on_train_batch_begin(batch, logs)
        if is_due:
            self.pauses.append(time.perf_counter() - start)


def main() -> None:
    """Parses the flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="*", default=[256, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clones", type=int, default=1)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.run:
        folder, steps = flags.run
        fit(flags.units[0], flags.clones, [save_to(folder), End(int(steps))])
        return
    for units in flags.units:
        report(units, flags.clones, flags.rounds)


def report(units, clones, rounds) -> None:
    """Prints what a network of this size costs."""
    model = make_model(units, clones)
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    state = sum(np.asarray(each).nbytes for each in [*model.weights, *model.optimizer.variables])
    print(f"\n{units} units, {clones} clones: {state / 1e6:.1f} MB of weights and optimizer")
    with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
        for name, beside in (("a save", False), ("a save beside the training", True)):
            pauses = [
                pause(units, clones, Path(folder) / f"{int(beside)}{number}", beside=beside)
                for number in range(rounds)
            ]
            print(f"  pause of {name}: {spread([1e3 * each for each in pauses])} ms")
        [newest] = sorted((Path(folder) / "00/saved").glob("step-*"))[-1:]
        written = sum(path.stat().st_size for path in newest.iterdir())
        print(f"  bytes on the disk / bytes of state: {written / state:.3f}")
        ratios = [recovery(units, clones, Path(folder) / f"r{number}") for number in range(rounds)]
        print(f"  recovery / cold start: {spread(ratios)}", flush=True)


def pause(units, clones, folder, *, beside: bool) -> float:
    """Returns how many seconds the training stands still for a save."""
    model, secs = make_model(units, clones), []
    for name in ("traced", "timed", "saved"):
        when = {"every_secs": EVERY * secs[1] / STEPS} if name == "saved" and beside else {}
        watch = save_to(folder / name, **when)
        start = time.perf_counter()
        model.fit(*data(), batch_size=BATCH_SIZE, verbose=0, callbacks=[watch])
        secs.append(time.perf_counter() - start)
    return statistics.median(watch.pauses)


def recovery(units, clones, folder) -> float:
    """Returns the time of a process that goes on, to its first step, over one that begins."""
    cold = run(units, clones, folder, 1)
    run(units, clones, folder, STEPS // 2)
    return run(units, clones, folder, 1) / cold


def run(units, clones, folder, steps) -> float:
    """Returns the seconds of a process that ends after a number of steps."""
    command = [sys.executable, __file__, "--units", str(units), "--clones", str(clones)]
    start = time.perf_counter()
    subprocess.run(
        [*command, "--run", str(folder), str(steps)], check=True, capture_output=True, timeout=300
    )
    return time.perf_counter() - start


def fit(units, clones, watch) -> None:
    """Trains an epoch."""
    make_model(units, clones).fit(*data(), batch_size=BATCH_SIZE, verbose=0, callbacks=watch)


def make_model(units, clones):
    """Returns the network."""
    keras.utils.set_random_seed(0)
    config = kerasdist.DeploymentConfig(num_clones=clones, clone_on_cpu=clones > 1)
    with kerasdist.make_strategy(config).scope():
        model = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                keras.layers.Dense(units, "relu"),
                keras.layers.Dense(units, "relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    return model


def data():
    """Returns the examples of an epoch."""
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH_SIZE, FEATURES)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def save_to(folder, **when) -> "TimedCheckpoint":
    """Returns what saves."""
    return TimedCheckpoint(folder, keep=STEPS, **(when or {"every_steps": EVERY}))


def spread(numbers) -> str:
    """Returns the median, and the least and the largest number."""
    return f"{statistics.median(numbers):.2f} [{min(numbers):.2f}, {max(numbers):.2f}]"


if __name__ == "__main__":
    main()
