"""Gathers the first examples of each worker on all of them, where each reads data of its own."""

from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.data import batches


def gathered_rows(batch: Any, strategy: tf.distribute.Strategy, num_examples: Any, number: int):
    """Returns the first examples of each worker, joined, or None where they cannot be sent.

    All workers must call it, and get the same.

    Args:
        batch: Structure of tensors [examples of this worker, ...].
        strategy: A strategy of ours.
        num_examples: How many of them count.
        number: The largest number of examples of one worker.
    """
    leaves = tf.nest.flatten(batch)
    can_be_sent = all(leaf is None or _is_sent(leaf) for leaf in leaves)
    forms = [leaf is not None and (leaf.dtype, leaf.shape[1:]) for leaf in leaves if can_be_sent]
    # Workers whose batches are padded to another width agree, too, that they cannot.
    if not peers.are_alike(strategy, str(forms)) or not can_be_sent:
        return None
    count = min(int(num_examples), number)
    counts = peers.gather(strategy, np.array([count]))[:, 0].astype(int)
    start = counts[: peers.index_of(strategy)].sum()
    own, total = slice(start, start + count), counts.sum()
    rows = [None if leaf is None else _joined(leaf, strategy, own, total) for leaf in leaves]
    return tf.nest.pack_sequence_as(batch, rows)


def _is_sent(leaf: Any) -> bool:
    """Whether a part of a batch is numbers that a float64 holds, with a row for each example."""
    if not isinstance(leaf, tf.Tensor) or not batches.has_first_axis(leaf):
        return False
    if leaf.dtype in (tf.int64, tf.uint64):
        return bool(tf.reduce_all(tf.cast(tf.cast(leaf, tf.float64), leaf.dtype) == leaf))
    return leaf.dtype.is_floating or leaf.dtype.is_bool or leaf.dtype.is_integer


def _joined(leaf: Any, strategy: tf.distribute.Strategy, own: slice, total: int) -> tf.Tensor:
    rows = np.zeros((total, *leaf.shape[1:]))
    rows[own] = tf.cast(leaf[: own.stop - own.start], tf.float64)
    return tf.cast(peers.sum_over(strategy, rows), leaf.dtype)
