"""A layer that sleeps, so that two cores can stand for many machines, each with a pace of its own.

How long is in a file, which the graph reads in every step: a graph is the same for all workers of
parameter servers, and no operation tells on which of them it runs, but each has a folder to be in.

    sleeping.enter(folder)                               # in each task, before `make_strategy`
    sleeping.set_pace(folder, worker=0, secs=0.1)        # in any of them, at any time
"""

import json
import os
from pathlib import Path

import keras
import tensorflow as tf

_FILE = "pace"


def enter(folder: str) -> None:
    """Changes into the folder of this task, of which TF_CONFIG says which it is; it does not sleep.

    Args:
        folder: One for all tasks.
    """
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    mine = _folder_of(folder, task["type"], task["index"])
    mine.mkdir()
    os.chdir(mine)
    _write(mine, 0, 0, 0)


def set_pace(folder: str, *, worker: int, secs: float, sigma: float = 0.0) -> None:
    """Says how long a step of a worker takes.

    Args:
        folder: See `enter`.
        worker: Its index.
        secs: The mean.
        sigma: Of the lognormal distribution that it has.
    """
    _write(_folder_of(folder, "worker", worker), secs, sigma, worker)


class Sleeps(keras.layers.Layer):
    """Gives its inputs, after a while."""

    def call(self, inputs):
        now = tf.timestamp()
        # Of a name that is a constant, TensorFlow would read the file but once.
        name = tf.gather(["", _FILE], tf.cast(now > 0, tf.int32))
        mean, sigma, seed = tf.unstack(
            tf.strings.to_number(tf.strings.split(tf.io.read_file(name)), tf.float64), num=3
        )
        # Seeds of the program are those of all workers, which would be late together.
        seeds = tf.cast(tf.stack([seed, now * 1e6]), tf.int64)
        noise = tf.random.stateless_normal([], seeds, dtype=tf.float64)
        slept = _sleep(mean * tf.exp(sigma * noise - sigma**2 / 2))
        return inputs + tf.cast(slept, inputs.dtype)


def _sleep(secs: tf.Tensor) -> tf.Tensor:
    """Sleeps in the graph, without Python, which workers of parameter servers do not run."""
    types, shapes = [tf.int64], [[]]
    element = tf.raw_ops.TensorDataset(components=[tf.constant(0, tf.int64)], output_shapes=shapes)
    # It sleeps before its element, and before its end.
    late = tf.raw_ops.SleepDataset(
        input_dataset=element,
        sleep_microseconds=tf.cast(secs * 1e6 / 2, tf.int64),
        output_types=types,
        output_shapes=shapes,
    )
    (slept,) = tf.raw_ops.DatasetToSingleElement(
        dataset=late, output_types=types, output_shapes=shapes
    )
    return slept


def _folder_of(folder: str, job: str, index: int) -> Path:
    return Path(folder) / f"{job}-{index}"


def _write(folder: Path, secs: float, sigma: float, seed: int) -> None:
    new = folder / "new"
    new.write_text(f"{secs} {sigma} {seed}")
    new.replace(folder / _FILE)  # No reader sees a part of it.
