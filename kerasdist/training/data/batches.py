"""Splits global batches over the replicas.

The user's data is batched with the global batch size. Every step takes one global batch from it and
gives each replica a contiguous share; sizes differ by one example at most, and where a batch is
smaller than the number of replicas the last replicas get none. Each example counts exactly once.
Every worker reads the global batch and takes the shares of its own replicas, so that all know,
without a message, how many examples the others have. Where a dataset can be cut before its `map`
(see `own_rows`), it prepares no more than its `WorkerPart` of the batch.

A replica without examples is handed one of the others': layers compute with it as with any, where
some of TensorFlow's fail on none and a mean over none is NaN. Its share is 0, so that nothing that
comes of it counts.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.hooks import divided_values


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """A global batch, split over the replicas.

    Attributes:
        data: One structure of tensors [examples of that replica, ...] per replica of this worker;
            [1, ...] where it has none.
        counts: The examples of each of those replicas: ints where the shapes are static, else int32
            scalars.
        total: The examples of the global batch, over all workers: int or int32 scalar.
        may_be_empty: Whether a replica can be without examples.
        are_whole: Whether each replica has all examples of the global batch.
    """

    data: tuple
    counts: list
    total: Any
    may_be_empty: bool
    are_whole: bool = False


class WorkerPart(NamedTuple):
    """What one worker has prepared of a global batch, as an element of its dataset.

    Attributes:
        total: The examples of the global batch, the same for each row: int64 [rows].
        digest: In the first row, a number of the global batch before it was prepared; of its first
            example alone, but for the first batch: float64 [rows].
        rows: Structure of tensors [rows, ...]: those of `part_of_worker`, or one of another worker
            where there are none.
    """

    total: Any
    digest: Any
    rows: Any


def rows_of(batch: Any) -> Any:
    """Returns the tensors of a batch, or of the part of it that a worker has prepared."""
    return batch.rows if isinstance(batch, WorkerPart) else batch


def part_of_worker(total: Any, num_workers: int, index: int) -> tuple[Any, Any]:
    """Returns the first row of a worker's part of a batch, and how many rows it has.

    A smaller batch gives no worker more: what is put together in fixed numbers of rows then ends
    where the batch does.

    Args:
        total: The examples of the global batch: int or integer scalar.
        num_workers: How many workers share it.
        index: Which of them.
    """
    each, left = total // num_workers, total % num_workers
    if isinstance(total, int):
        return index * each + min(index, left), each + (index < left)
    more = tf.cast(index < left, total.dtype)
    return index * each + tf.minimum(tf.cast(index, total.dtype), left), each + more


def num_own(part: WorkerPart, strategy: tf.distribute.Strategy) -> tf.Tensor:
    """Returns how many rows of a part are this worker's own: int64 scalar, 0 for a borrowed one."""
    return part_of_worker(part.total[0], peers.count(strategy), peers.index_of(strategy))[1]


def gathered(part: WorkerPart, strategy: tf.distribute.Strategy) -> Any:
    """Returns a global batch of the parts of all workers, which send them; all must call it."""
    total, num_workers = part.total[0], peers.count(strategy)
    start, count = part_of_worker(total, num_workers, peers.index_of(strategy))

    def leaf(rows: Any) -> tf.Tensor:
        sent = rows
        if rows.dtype not in (tf.float32, tf.float64, tf.int64):  # Messages know not all others.
            sent = tf.cast(rows, tf.float32 if rows.dtype.is_floating else tf.int64)
        around = [[start, total - start - count], *([0, 0] for _ in rows.shape[1:])]
        padded = tf.pad(sent[:count], tf.convert_to_tensor(around))  # Zeros for those of others.
        whole = tf.ensure_shape(_sum_over_workers(padded, strategy), [None, *rows.shape[1:]])
        return tf.cast(whole, rows.dtype)

    return tf.nest.map_structure(leaf, part.rows)


def _sum_over_workers(tensor: tf.Tensor, strategy: tf.distribute.Strategy) -> tf.Tensor:
    if tf.executing_eagerly():
        return tf.cast(peers.sum_over(strategy, tensor.numpy()), tensor.dtype)
    return peers.sum_in_graph(strategy, tensor)


def whole_for_each(batch: Any, strategy: tf.distribute.Strategy) -> Shares:
    """Returns all of a global batch for each replica of this worker.

    One of a distributed dataset is all of it where there is one worker.
    """
    is_part = isinstance(batch, WorkerPart)
    batch = gathered(batch, strategy) if is_part else in_one_piece(batch, strategy)
    num_local, size = len(peers.local_replicas(strategy)), num_examples(batch)
    data, counts = (batch,) * num_local, [size] * num_local
    return Shares(data=data, counts=counts, total=size, may_be_empty=False, are_whole=True)


def shares_of(batch: Any, strategy: tf.distribute.Strategy) -> Shares:
    """Returns what each replica of this worker gets of a global or of a distributed batch."""
    if isinstance(batch, WorkerPart):
        return shares_of_own(batch.rows, strategy, num_own(batch, strategy), batch.total[0])
    num_replicas = strategy.num_replicas_in_sync
    if divided_values.is_distributed(batch):
        data = strategy.experimental_local_results(batch)
        counts = [num_examples(each) for each in data]
        total = sum(counts[1:], counts[0])
        data = data if len(data) == 1 else _lend_examples(data, counts)
        if peers.count(strategy) > 1:
            # Only they know what the other workers hold.
            total = peers.sum_in_graph(strategy, tf.convert_to_tensor(total))
    else:
        replicas = peers.local_replicas(strategy)
        data = split(batch, num_replicas, replicas)
        has_examples = any(map(has_first_axis, tf.nest.flatten(batch)))
        total = num_examples(batch) if has_examples else num_replicas
        counts = counts_of(total, num_replicas, replicas)
    may_be_empty = not isinstance(total, int) or total < num_replicas or 0 in counts
    return Shares(data=data, counts=counts, total=total, may_be_empty=may_be_empty)


def shares_of_own(batch: Any, strategy: tf.distribute.Strategy, size: Any, total: Any) -> Shares:
    """Returns the shares of a batch that this worker has read for itself.

    Args:
        batch: Structure of tensors [examples of this worker, ...]; [1, ...] where it has none.
        strategy: A strategy of ours.
        size: int64 scalar, the examples of this worker.
        total: int64 scalar, the examples of all workers' batches.
    """
    data = local_shares_of(batch, strategy)
    counts = counts_of(tf.cast(size, tf.int32), len(data))
    return Shares(data=data, counts=counts, total=tf.cast(total, tf.int32), may_be_empty=True)


def local_shares_of(batch: Any, strategy: tf.distribute.Strategy) -> tuple:
    """Returns a batch split over the replicas of this worker alone."""
    if divided_values.is_distributed(batch):
        data = strategy.experimental_local_results(batch)
        return _lend_examples(data, [num_examples(each) for each in data])
    return split(batch, len(peers.local_replicas(strategy)))


def local_counts_of(batch: Any, strategy: tf.distribute.Strategy) -> list:
    """Returns the examples of each replica of this worker in `local_shares_of(batch)`."""
    if divided_values.is_distributed(batch):
        return [num_examples(each) for each in strategy.experimental_local_results(batch)]
    return counts_of(num_examples(batch), len(peers.local_replicas(strategy)))


def split(batch: Any, num_replicas: int, replicas: range | None = None) -> tuple:
    """Splits a global batch into one contiguous share for each replica.

    Args:
        batch: Structure of tensors [global batch, ...]; sparse and ragged tensors are fine, and
            scalars and None go to every replica as they are.
        num_replicas: Number of shares, in total.
        replicas: Positions of the shares to return. Defaults to all.

    Returns:
        Tuple of structures like `batch`, one for each of `replicas`. The first shares are the
        larger ones: 5 examples over 2 replicas give 3 and 2. Where `counts_of` gives 0, it is the
        last example: 1 example over 4 goes to all of them.
    """
    if num_replicas == 1:
        return (batch,)
    replicas = range(num_replicas) if replicas is None else replicas
    leaves = tf.nest.flatten(batch)
    sliced = [_split_leaf(leaf, num_replicas, replicas) for leaf in leaves]
    return tuple(tf.nest.pack_sequence_as(batch, shares) for shares in zip(*sliced, strict=True))


def counts_of(total: Any, num_replicas: int, replicas: range | None = None) -> list:
    """Returns the examples that each replica gets: 1 example over 4 gives 1, 0, 0 and 0.

    Args:
        total: The examples of the global batch: int or int32 scalar.
        num_replicas: Number of shares, in total.
        replicas: Positions of the shares to return. Defaults to all.
    """
    replicas = range(num_replicas) if replicas is None else replicas
    return [
        _start(total, num_replicas, replica + 1) - _start(total, num_replicas, replica)
        for replica in replicas
    ]


def dataset_of(batch: Any, element_spec: Any) -> tf.data.Dataset:
    """Returns a dataset of one batch, in the form that `element_spec` gives to its shapes."""

    def leaf(value: Any, spec: Any):
        if not isinstance(value, tf.Tensor):
            return value
        return tf.compat.v1.placeholder_with_default(value, spec.shape)

    return tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.nest.map_structure(leaf, batch, element_spec)
    )


def as_tensors(batch: Any):
    """Returns a batch with tensors for its arrays and numbers."""

    def tensor(leaf: Any):
        is_kept = leaf is None or tf.is_tensor(leaf) or divided_values.is_distributed(leaf)
        return leaf if is_kept else tf.convert_to_tensor(leaf)

    return tf.nest.map_structure(tensor, batch)


def without_optionals(batch: Any):
    """Returns a batch with None where Keras' readers of Python data had to put an Optional."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def joined(parts: Sequence):
    """Returns tensors, sparse or ragged ones too, joined along their first axis."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.concat(list(parts), axis=0)


def rows(leaf: Any, start: Any, end: Any):
    """Returns `leaf[start:end]` of a tensor, sparse or ragged ones too."""
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:end]
    others = leaf.dense_shape[1:]
    if leaf.shape[1:].is_fully_defined():  # TensorFlow would forget it, and layers build from it.
        others = tf.constant(leaf.shape.as_list()[1:], tf.int64)
    start, end = tf.cast(start, tf.int64), tf.cast(end, tf.int64)
    shape = tf.concat([[end - start], others], axis=0)
    sliced = tf.sparse.slice(leaf, tf.concat([[start], tf.zeros_like(others)], axis=0), shape)
    return tf.SparseTensor(sliced.indices, sliced.values, shape)


def num_examples(data: Any) -> Any:
    """Returns the length of the first axis of `data`'s first tensor; 1 for scalars and no data."""
    for leaf in tf.nest.flatten(data):
        if has_first_axis(leaf):
            return _size(leaf)
    return 1


def has_first_axis(leaf: Any) -> bool:
    """Whether a leaf of a batch is a tensor with examples: no scalar, and no None."""
    return getattr(leaf, "shape", None) is not None and leaf.shape.rank != 0


def _size(leaf: Any):
    """Returns the length of the first axis: int where it is known, else int32 scalar."""
    if isinstance(leaf, tf.RaggedTensor):
        size = tf.cast(leaf.nrows(), tf.int32)
    elif isinstance(leaf, tf.SparseTensor):
        size = tf.cast(leaf.dense_shape[0], tf.int32)
    elif leaf.shape.rank is not None and leaf.shape[0] is not None:
        return int(leaf.shape[0])
    else:
        size = tf.shape(leaf)[0]
    return int(size) if tf.executing_eagerly() else size


def _split_leaf(leaf: Any, num_replicas: int, replicas: range):
    if not has_first_axis(leaf):
        return [leaf] * len(replicas)
    size = _size(leaf)
    return [rows(leaf, *_bounds(size, num_replicas, replica)) for replica in replicas]


def _bounds(size: Any, num_replicas: int, replica: int) -> tuple:
    """Returns the first row of a replica and the one behind its last; one row where it has none."""
    start, end = _start(size, num_replicas, replica), _start(size, num_replicas, replica + 1)
    if isinstance(size, int):
        return (start, end) if end > start else (max(size - 1, 0), size)
    is_empty = tf.equal(start, end)
    return tf.where(is_empty, tf.maximum(size - 1, 0), start), tf.where(is_empty, size, end)


def _start(size: Any, num_replicas: int, replica: int):
    # Rounded up, so that the first replicas get the examples that are over.
    return -((-size * replica) // num_replicas)


def _lend_examples(data: tuple, counts: list) -> tuple:
    """Returns the replicas' data, with an example of another replica where one has none."""
    if all(isinstance(count, int) and count for count in counts):
        return data
    leaves = [tf.nest.flatten(each) for each in data]
    lent = [_lend(list(group), counts) for group in zip(*leaves, strict=True)]
    return tuple(
        tf.nest.pack_sequence_as(data[0], list(replica)) for replica in zip(*lent, strict=True)
    )


def _lend(group: list, counts: list) -> list:
    if not has_first_axis(group[0]):
        return group
    spare = [rows(leaf, 0, tf.minimum(count, 1)) for leaf, count in zip(group, counts, strict=True)]
    if isinstance(group[0], tf.Tensor):
        spare.append(_made_up(group[0]))  # This worker has no example, and another one has.
    spare = joined(spare)
    return [
        joined([leaf, rows(spare, 0, 1 - tf.minimum(count, 1))])
        for leaf, count in zip(group, counts, strict=True)
    ]


def _made_up(leaf: tf.Tensor):
    """Returns one example that divisions and logarithms can do with."""
    shape = tf.concat([[1], tf.shape(leaf)[1:]], axis=0)
    value = "" if leaf.dtype == tf.string else 1 if leaf.dtype.is_floating else 0
    return tf.fill(shape, tf.cast(value, leaf.dtype) if value != "" else value)


def in_one_piece(batch: Any, strategy: tf.distribute.Strategy):
    """Returns a batch of this worker; one of a distributed dataset with its parts joined."""
    if not divided_values.is_distributed(batch):
        return batch
    return tf.nest.map_structure(
        lambda *parts: joined(parts) if has_first_axis(parts[0]) else parts[0],
        *strategy.experimental_local_results(batch),
    )
