"""What checkpoints cost: the pause of a save, the time to go on from one, and their bytes.

    python benchmarks/checkpoint.py                    # about five minutes on two cores
    python benchmarks/checkpoint.py --units 256 --rounds 3

A dense network under Adam. Pause: how long the training stands still for a checkpoint, of which
there is one after every 25th step; and for one that is written beside the training, after the time
of 25 steps. Recovery: from the start of a process to the end of its first step, where it
goes on from a checkpoint in the middle of an epoch, over the same where it begins; a process each,
in turn. Bytes: those on the disk over those of weights, optimizer and metrics. Place: how much
longer that is at step 100,000 of an epoch than at step 100, in several kinds of data.
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
import tensorflow as tf

import kerasdist
from kerasdist import callbacks

STEPS, EVERY, BATCH_SIZE, FEATURES = 100, 25, 32, 64
# Of an epoch; a call has as many as the first.
PLACES = (100, 100_000)


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
    parser.add_argument("--places-only", action="store_true")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--place", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.place:
        kind, folder, step = flags.place
        fit_to(kind, folder, int(step))
        return
    if flags.run:
        folder, steps = flags.run
        fit(flags.units[0], flags.clones, [save_to(folder), End(int(steps))])
        return
    for units in [] if flags.places_only else flags.units:
        report(units, flags.clones, flags.rounds)
    report_places()


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


def report_places() -> None:
    """Prints how much longer it takes to go on at a late step than at an early one."""
    print(f"\nto go on at step {PLACES[1]} and at step {PLACES[0]}, batches of 8:")
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="kerasdist_") as folder:
            late, early = (
                seconds_at(kind, Path(folder) / str(step), step) for step in PLACES[::-1]
            )
        print(f"  {kind}: {late:.1f} s and {early:.1f} s, {late - early:+.1f} s", flush=True)


def seconds_at(kind, folder, step) -> float:
    """Returns the seconds of a process that goes on at a step, to the end of its first call."""
    for _ in range(2):  # The first one trains up to it.
        start = time.perf_counter()
        command = [sys.executable, __file__, "--place", kind, str(folder), str(step)]
        subprocess.run(command, check=True, capture_output=True, timeout=500)
    return time.perf_counter() - start


def fit_to(kind, folder, step) -> None:
    """Trains until there is a checkpoint of a step, or goes on from it for a call."""
    keras.utils.set_random_seed(0)
    with kerasdist.make_strategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=PLACES[0])
    num_calls = 1 if Path(folder).exists() else step // PLACES[0] + 1
    watch = [callbacks.Checkpoint(folder, every_steps=step), End(num_calls)]
    data = KINDS[kind]()
    arguments = {"y": data, "batch_size": 8} if kind == "arrays" else {}
    model.fit(data, **arguments, verbose=0, callbacks=watch)


def numbers():
    """Returns the examples of an epoch, longer than the last place."""
    return tf.data.Dataset.range(8 * 2 * PLACES[1])


def example(number):
    """Returns an example that takes some time to prepare."""
    x = tf.reduce_mean(tf.random.stateless_normal([1000], [number, 1]), keepdims=True)
    return x, x


def small_buffers():
    """Returns data of which a checkpoint holds the place."""
    return numbers().shuffle(1000).map(example, num_parallel_calls=2).batch(8).prefetch(2)


def large_buffers():
    """Returns data that is prepared before it is shuffled, in a buffer that is too large for it."""
    return numbers().map(example, num_parallel_calls=2).shuffle(20_000).batch(8).prefetch(2)


KINDS = {
    "small buffers": small_buffers,
    "large buffers": large_buffers,
    "arrays": lambda: np.ones((8 * 2 * PLACES[1], 1), "float32"),
}


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
