"""Decides which part of the data each worker reads, and which part of it it prepares.

It reads some of the files (see `file_shards`), or everything. Of that it prepares its part of each
batch (see `own_rows`), or everything.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_routes
from kerasdist.support.terminal import announce
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import file_shards, input_functions, own_rows


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """What one of several workers has of the data; both are None where it has all.

    Attributes:
        of_files: What it reads for itself: triples of `file_shards.with_next_size`.
        of_batches: What it prepares: `batches.WorkerPart` of each batch that all of them read.
    """

    of_files: tf.data.Dataset | None = None
    of_batches: tf.data.Dataset | None = None


def divide(
    dataset: Any, strategy: tf.distribute.Strategy, *, is_function: bool = False
) -> Division:
    """Returns what this worker has of the data; the chief says how it is divided.

    Args:
        dataset: Yields global batches, or what this worker takes in a step.
        strategy: A strategy of ours.
        is_function: Whether a function has made it for this worker.
    """
    is_alone = peers.count(strategy) == 1 or running_call.reads_whole_data()
    if is_alone or not isinstance(dataset, tf.data.Dataset):
        return Division()
    if is_function:
        return Division(of_files=input_functions.share(dataset))
    of_files, *obstacles = file_shards.shard(dataset, strategy)
    of_batches = obstacle = None
    if of_files is None:
        of_batches, obstacle = _part_of_batches(dataset, strategy)
        obstacles.append(obstacle)
    if peers.is_chief(strategy):
        how = "every worker reads all of it and takes its part of each batch"
        if of_files is not None:
            num_files, number = dataset_adapter.num_source_texts(dataset), peers.count(strategy)
            how = f"{num_files} files, each read by one of {number} workers"
        elif of_batches is not None:
            how = "every worker reads all of it and prepares its part of each batch"
            obstacles = [f"an earlier `map` prepares all: {obstacle}"] if obstacle else []
        reasons = "; ".join(filter(None, obstacles))
        announce(f"Data: {how} ({reasons})." if reasons else f"Data: {how}.")
    return Division(of_files=of_files, of_batches=of_batches)


def _part_of_batches(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> tuple[tf.data.Dataset | None, str | None]:
    """Returns what `own_rows.of_worker` does where our steps take the batches."""
    if not dataset_adapter.has_map(dataset):
        return None, None
    model = running_call.model()
    for name in ("make_train_function", "make_test_function"):
        if model is not None and keras_routes.is_overridden(model, name):
            return None, f"the model has a `{name}` of its own"
    return own_rows.of_worker(dataset, strategy)
