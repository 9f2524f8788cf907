"""Lets each worker read files of its own, where data is in files.

Usually every worker reads all the data and takes its part of each global batch, which gives the
batches of one device. Where the data is in at least as many files as there are workers, and nothing
in the dataset needs the examples of all files (see `transformations`), each reads some of the files
instead, and less. The workers' examples then differ in number, so that one may be at the end before
the others. It goes on with empty batches, and the epoch ends for all of them in the same step: when
the next global batch is empty.

To know that without a message of its own, a worker looks one batch ahead, and sends the size of its
next batch with the gradients of this one.
"""

from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.data.transformations import Transformations

_Policy = tf.data.experimental.AutoShardPolicy


def shard(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> tuple[tf.data.Dataset | None, str | None]:
    """Returns the part of a dataset that one of several workers reads, and why there is none.

    Args:
        dataset: Yields global batches.
        strategy: A strategy of ours.

    Returns:
        Dataset of triples (batch, its int64 size, the size of the next one), which never ends:
        first a batch of size 0 with the size of the first one, and batches of size 0 after the last
        one. A batch of size 0 holds one example, which must not count. None where it is not by
        file; and the reason in words, None where there are no files, too.
    """
    # Other texts may be paths of images, or words.
    num_files = dataset_adapter.num_source_texts(dataset)
    definition = dataset_adapter.definition_of(dataset) if num_files else None
    transformations = Transformations(definition) if definition else None
    if not (transformations and transformations.read_files):
        return None, None
    num_workers = peers.count(strategy)
    obstacle = _obstacle(dataset, transformations, num_files, num_workers)
    if obstacle is not None:
        return None, obstacle
    part = dataset_adapter.shard_by_file(dataset, num_workers, peers.index_of(strategy))
    return None if part is None else with_next_size(part), None


def with_next_size(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the triples that `shard` returns, of this worker's part of each global batch."""
    dataset = _without_names(dataset)
    empty, first = (_zeros(dataset.element_spec, number) for number in (0, 1))
    endless = dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat())
    return endless.scan((first, tf.constant(0, tf.int64)), _look_ahead)


def _without_names(dataset: tf.data.Dataset):
    # Specs with names, as those of Ray's datasets, cannot be concatenated with any others.
    spec = dataset.element_spec
    return dataset.map(lambda *parts: tf.nest.pack_sequence_as(spec, tf.nest.flatten(parts)))


def _look_ahead(last: tuple, batch: Any):
    size = tf.cast(batches.num_examples(batch), tf.int64)
    # After the last batch an example of it stands in: see `batches`.
    one = tf.nest.map_structure(lambda part: part[:1], last[0])
    batch = tf.cond(size > 0, lambda: batch, lambda: one)
    return (batch, size), (*last, size)


def _zeros(specs: Any, number: int):
    """Returns so many examples of a spec; axes of unknown length have this length, too."""

    def leaf(spec: tf.TensorSpec):
        shape = [number, *(number if size is None else size for size in spec.shape[1:])]
        return tf.zeros(shape, spec.dtype)

    return tf.nest.map_structure(leaf, specs)


def _obstacle(
    dataset: tf.data.Dataset, transformations: Transformations, num_files: int, num_workers: int
) -> str | None:
    """Returns why each worker cannot read some of the files alone; None where it can."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (_Policy.AUTO, _Policy.FILE):
        return f"its auto_shard_policy is {policy.name}"
    if num_files < num_workers:
        found = "1 file is" if num_files == 1 else f"{num_files} files are"
        return f"{found} too few for {num_workers} workers to share"
    if transformations.of_whole_data:
        return f"`{transformations.of_whole_data}` needs all files"
    leaves = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves):
        return "its batches hold more than dense tensors"
    size = dataset_adapter.computed_batch_size(dataset)
    if size is None:
        return "its batch size is not known"
    if size < num_workers:
        return f"batches of {size} are too small for {num_workers} workers to share"
    return None
