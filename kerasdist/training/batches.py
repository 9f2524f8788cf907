"""Global batches: how they are split over the replicas.

The user's data is batched with the global batch size. Every step takes one global batch from it and
gives each replica a contiguous share; sizes differ by one example at most, and where a batch is
smaller than the number of replicas the last replicas get none. Nothing is padded, repeated or
dropped, so each example counts exactly once.
"""

import itertools

import tensorflow as tf


def split(batch, num_replicas: int) -> tuple:
    """Splits a global batch into one contiguous share for each replica.

    Args:
        batch: Structure of tensors [global batch, ...]; sparse and ragged tensors are fine, and
            scalars and None go to every replica as they are.
        num_replicas: Number of shares, in total.

    Returns:
        Tuple of `num_replicas` structures like `batch`. The first shares are the larger ones:
        5 examples over 2 replicas give 3 and 2; 1 example over 4 gives 1, 0, 0 and 0.
    """
    if num_replicas == 1:
        return (batch,)
    leaves = tf.nest.flatten(batch)
    sliced = [_split_leaf(leaf, num_replicas) for leaf in leaves]
    return tuple(
        tf.nest.pack_sequence_as(batch, [shares[replica] for shares in sliced])
        for replica in range(num_replicas)
    )


def distribute(batch, strategy):
    """Returns a global batch (or a distributed one, as it is) as one value per replica."""
    if _is_distributed_value(batch):
        return batch
    shares = split(batch, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group]
    )


def shares_of(batch, strategy) -> tuple:
    """Returns one structure of tensors per replica for a global or a distributed batch."""
    if _is_distributed_value(batch):
        return strategy.experimental_local_results(batch)
    return split(batch, strategy.num_replicas_in_sync)


def _split_leaf(leaf, num_replicas):
    if leaf is None or getattr(leaf, "shape", None) is None or leaf.shape.rank == 0:
        return [leaf] * num_replicas
    if isinstance(leaf, tf.SparseTensor):
        return _split_sparse(leaf, num_replicas)
    size = leaf.nrows() if isinstance(leaf, tf.RaggedTensor) else leaf.shape[0]
    if size is None:
        size = tf.shape(leaf)[0]
    # Rounded up, so that the first replicas get the examples that are over.
    bounds = [-((-size * replica) // num_replicas) for replica in range(num_replicas + 1)]
    return [leaf[start:end] for start, end in itertools.pairwise(bounds)]


def _split_sparse(leaf, num_replicas):
    shape = leaf.dense_shape
    bounds = [-((-shape[0] * replica) // num_replicas) for replica in range(num_replicas + 1)]
    return [
        tf.sparse.slice(
            leaf,
            tf.concat([[start], tf.zeros_like(shape[1:])], axis=0),
            tf.concat([[end - start], shape[1:]], axis=0),
        )
        for start, end in itertools.pairwise(bounds)
    ]


def _is_distributed_value(batch) -> bool:
    return any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in tf.nest.flatten(batch))
