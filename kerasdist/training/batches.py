"""Global batches: how they are split over the replicas.

The user's data is batched with the global batch size. Every step takes one global batch from it and
gives each replica a contiguous share; sizes differ by one example at most, and where a batch is
smaller than the number of replicas the last replicas get none. Nothing is padded, repeated or
dropped, so each example counts exactly once. Every worker reads the global batch and takes the
shares of its own replicas, so that all know, without a message, how many examples the others have.
"""

import dataclasses
import itertools
from typing import Any

import tensorflow as tf

from kerasdist.training import workers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """A global batch, split over the replicas.

    Attributes:
        data: One structure of tensors [examples of that replica, ...] per replica of this worker.
        counts: The examples of each of those replicas: ints where the shapes are static, else int32
            scalars.
        total: The examples of the global batch, over all workers: int or int32 scalar.
        may_be_empty: Whether a replica can be without examples.
    """

    data: tuple
    counts: list
    total: Any
    may_be_empty: bool


def shares_of(batch, strategy) -> Shares:
    """Returns what each replica of this worker gets of a global or of a distributed batch."""
    if is_distributed(batch):
        data = strategy.experimental_local_results(batch)
        counts = [num_examples(each) for each in data]
        total = counts[0] if len(counts) == 1 else _sum(counts)
        is_static = _all_static(counts)
        if workers.count(strategy) > 1:
            # What the other workers hold is theirs to say.
            total, is_static = workers.sum_in_graph(strategy, tf.convert_to_tensor(total)), False
    else:
        data = split(batch, strategy.num_replicas_in_sync, workers.local_replicas(strategy))
        counts = [num_examples(each) for each in data]
        total = num_examples(batch)
        if strategy.num_replicas_in_sync > 1 and not _has_batch_axis(batch):
            total = strategy.num_replicas_in_sync
        is_static = isinstance(total, int)
    may_be_empty = not is_static or total < strategy.num_replicas_in_sync or 0 in counts
    return Shares(data=data, counts=counts, total=total, may_be_empty=may_be_empty)


def shares_of_own(batch, strategy, total) -> Shares:
    """Returns the shares of a batch that this worker has read for itself.

    Args:
        batch: Structure of tensors [examples of this worker, ...].
        strategy: A strategy of ours.
        total: int64 scalar, the examples of all workers' batches.
    """
    data = local_shares_of(batch, strategy)
    counts = [num_examples(each) for each in data]
    return Shares(data=data, counts=counts, total=tf.cast(total, tf.int32), may_be_empty=True)


def local_shares_of(batch, strategy) -> tuple:
    """Returns a batch split over the replicas of this worker alone."""
    if is_distributed(batch):
        return strategy.experimental_local_results(batch)
    return split(batch, len(workers.local_replicas(strategy)))


def split(batch, num_replicas: int, replicas: range | None = None) -> tuple:
    """Splits a global batch into one contiguous share for each replica.

    Args:
        batch: Structure of tensors [global batch, ...]; sparse and ragged tensors are fine, and
            scalars and None go to every replica as they are.
        num_replicas: Number of shares, in total.
        replicas: Positions of the shares to return. Defaults to all.

    Returns:
        Tuple of structures like `batch`, one for each of `replicas`. The first shares are the
        larger ones: 5 examples over 2 replicas give 3 and 2; 1 example over 4 gives 1, 0, 0 and 0.
    """
    if num_replicas == 1:
        return (batch,)
    replicas = range(num_replicas) if replicas is None else replicas
    leaves = tf.nest.flatten(batch)
    sliced = [_split_leaf(leaf, num_replicas, replicas) for leaf in leaves]
    return tuple(tf.nest.pack_sequence_as(batch, shares) for shares in zip(*sliced, strict=True))


def num_examples(data) -> Any:
    """Returns the length of the first axis of `data`'s first tensor; 1 for scalars and no data."""
    for leaf in tf.nest.flatten(data):
        shape = getattr(leaf, "shape", None)
        if shape is None or shape.rank == 0:
            continue
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        if shape.rank is not None and shape[0] is not None:
            return int(shape[0])
        return tf.shape(leaf)[0]
    return 1


def _split_leaf(leaf, num_replicas, replicas):
    if leaf is None or getattr(leaf, "shape", None) is None or leaf.shape.rank == 0:
        return [leaf] * len(replicas)
    if isinstance(leaf, tf.SparseTensor):
        return _split_sparse(leaf, num_replicas, replicas)
    size = leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else leaf.shape[0]
    if size is None:
        size = tf.shape(leaf)[0]
    bounds = _bounds(size, num_replicas, replicas)
    return [leaf[start:end] for start, end in itertools.pairwise(bounds)]


def _split_sparse(leaf, num_replicas, replicas):
    shape = leaf.dense_shape
    bounds = _bounds(shape[0], num_replicas, replicas)
    shares = [
        tf.sparse.slice(
            leaf,
            tf.concat([[start], tf.zeros_like(shape[1:])], axis=0),
            tf.concat([[end - start], shape[1:]], axis=0),
        )
        for start, end in itertools.pairwise(bounds)
    ]
    for share in shares:  # A layer that is built from one needs the sizes of its features.
        share.set_shape([None, *leaf.shape[1:]])
    return shares


def _bounds(size, num_replicas, replicas) -> list:
    # Rounded up, so that the first replicas get the examples that are over.
    ends = [*replicas, replicas[-1] + 1]
    return [-((-size * replica) // num_replicas) for replica in ends]


def _has_batch_axis(batch) -> bool:
    shapes = [getattr(leaf, "shape", None) for leaf in tf.nest.flatten(batch)]
    return any(shape is not None and shape.rank != 0 for shape in shapes)


def _all_static(counts) -> bool:
    return all(isinstance(count, int) for count in counts)


def _sum(counts):
    return sum(counts) if _all_static(counts) else tf.add_n(counts)


def is_distributed(batch) -> bool:
    """Whether a batch comes from a distributed dataset, with a value for each replica."""
    return any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in tf.nest.flatten(batch))
