"""Checks that no two workers write the file of one `cache(filename)`.

Each worker writes what it reads, and two of them cannot write one file: TensorFlow ends the second
one in the middle of a step. A file that holds all examples already is only read.
"""

import contextlib
import os
from collections.abc import Generator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.context import peers, running_call


def check(dataset: Any, strategy: tf.distribute.Strategy) -> None:
    """Checks that no two workers are about to write the same file; all of them must call it.

    Machines may have a disk of their own under the same path, so each worker looks for a mark that
    the others leave beside the file.

    Raises:
        ValueError: They are, on each of those.
    """
    if peers.count(strategy) == 1 or running_call.reads_whole_data():
        return
    files = dataset_adapter.cache_files(dataset)
    paths = [path for path in files if not _exists(f"{path}.index")]  # The others are complete.
    own = int.from_bytes(os.urandom(6)) if paths else 0
    with _marks([_mark(path, own) for path in paths]):
        # Also where this worker has no such file: others may.
        numbers = {int(number) for (number,) in peers.gather(strategy, np.array([own]))} - {0}
        if not numbers:
            return
        others = numbers - {own}
        shared = [path for path in paths if any(_exists(_mark(path, each)) for each in others)]
        peers.sum_over(strategy, 0)  # The marks stay until all have looked.
    if shared:
        raise ValueError(
            f"Several workers would write the file of `cache({shared[0]!r})` at the same time: "
            "each of them what it reads. Use `cache()`, which keeps the data in memory, or "
            "give each worker a file of its own: "
            f'`cache(f"{shared[0]}-{{kerasdist.Cluster.from_env().worker_index}}")`.'
        )


def _exists(path: str) -> bool:
    try:
        return tf.io.gfile.exists(path)
    except tf.errors.OpError:
        return False


def _mark(path: str, number: int) -> str:
    return f"{path}.{number}.worker"


@contextlib.contextmanager
def _marks(paths: list[str]) -> Generator[None]:
    # TensorFlow says what is wrong with a folder that cannot be written.
    for path in paths:
        with contextlib.suppress(tf.errors.OpError), tf.io.gfile.GFile(path, "w") as mark:
            mark.write("")  # Makes the file.
    try:
        yield
    finally:
        for path in paths:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(path)
