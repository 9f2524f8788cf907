"""What one replica knows about the global batch while its step is traced.

A global batch is split over the replicas, and the shares need not be equal: the last batch of an
epoch may be odd, or smaller than the number of replicas. Whatever must then be weighed by examples
(losses, gradients, means) asks `current()` for its share instead of assuming 1 / num_replicas.

    replica_step = current()
    if replica_step is not None:            # None outside a step of our strategies
        loss = loss * replica_step.share    # the global loss is the sum of these over the replicas
"""

import contextlib
import dataclasses
import threading
from collections.abc import Generator
from typing import Any

import tensorflow as tf

# MirroredStrategy traces every replica in a thread of its own.
_local = threading.local()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStep:
    """The share of one replica in the global batch of the step that is being traced.

    Attributes:
        replica_id: Position of the replica among all replicas, from 0.
        num_examples: int32 scalar, the examples on this replica; may be 0.
        global_num_examples: int32 scalar, the examples on all replicas.
        share: float32 scalar num_examples / global_num_examples, or a Python float where the
            shapes are static; the shares of all replicas add up to 1.
        is_only_replica: Whether this is one device, with the whole batch.
        may_be_empty: Whether this replica can receive no example at all.
        weighs_loss: Whether the step multiplies the loss by `share` before the backward pass,
            which saves one multiplication for every gradient after it.
        callbacks: The update callbacks of the `fit` that runs.
        losses: The mean losses of this replica by the names of their metrics, as they are tracked.
        updates: The optimizers whose updates the callbacks took part in.
    """

    replica_id: int
    num_examples: Any
    global_num_examples: Any
    share: Any
    is_only_replica: bool
    may_be_empty: bool
    weighs_loss: bool
    callbacks: tuple = ()
    losses: dict = dataclasses.field(default_factory=dict)
    updates: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStep:
    """One step over all replicas: their outputs, the share of each, and the number of examples."""

    outputs: Any
    shares: list
    num_examples: Any


def current() -> ReplicaStep | None:
    """Returns the step that this thread traces, or None outside the steps of our strategies."""
    return getattr(_local, "replica_step", None)


def global_num_examples():
    """Returns the examples of the global batch: int32 scalar; 0 outside a step."""
    step = current()
    return step.global_num_examples if step else 0


def losses() -> dict:
    """Returns the losses that the step of this thread has tracked so far."""
    step = current()
    return dict(step.losses) if step else {}


@contextlib.contextmanager
def entered(replica_step: ReplicaStep) -> Generator[None]:
    """Makes `replica_step` the `current()` one of this thread."""
    _local.replica_step = replica_step
    try:
        yield
    finally:
        _local.replica_step = None


def run(
    strategy, step_function, shares, *, weighs_loss=False, guards_nan=False, checks=(), callbacks=()
):
    """Runs `step_function` once on every replica, each with its share of the global batch.

    Args:
        strategy: One of our strategies; called in its cross-replica context.
        step_function: Called as `step_function(data)` in replica context.
        shares: Tuple with one structure of tensors [examples on that replica, ...] per replica.
        weighs_loss: Whether the step can weigh the loss; see `ReplicaStep.weighs_loss`.
        guards_nan: Whether a replica without examples may give NaN gradients, as the mean over no
            example does in a layer of the user's. They then count for nothing, at the price of
            weighing every gradient.
        checks: Tensors that must be there before anything of the step runs.
        callbacks: See `ReplicaStep.callbacks`.

    Returns:
        GlobalStep with what `strategy.run` returned and the shares it ran with.
    """
    counts = [num_examples(data) for data in shares]
    total: Any = sum(counts) if _all_static(counts) else tf.add_n(counts)
    fractions = [_fraction(count, total) for count in counts]
    may_be_empty = not _all_static(counts) or 0 in counts

    def replica_fn(data):
        replica_id = _replica_id()
        replica_step = ReplicaStep(
            replica_id=replica_id,
            num_examples=counts[replica_id],
            global_num_examples=total,
            share=fractions[replica_id],
            is_only_replica=len(shares) == 1,
            may_be_empty=may_be_empty,
            weighs_loss=weighs_loss and not (guards_nan and may_be_empty),
            callbacks=callbacks,
        )
        with entered(replica_step), after(data, checks):
            outputs = step_function(data)
        if callbacks and not replica_step.updates:
            raise RuntimeError(
                f"{type(callbacks[0]).__name__} takes part in `optimizer.apply`, which this "
                "train_step does not call. Apply the gradients with the optimizer, or leave the "
                "callback out."
            )
        return outputs

    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group]
    )
    outputs = strategy.run(replica_fn, args=(per_replica,))
    return GlobalStep(outputs=outputs, shares=fractions, num_examples=total)


def after(data, checks=()):
    """Keeps what is traced inside from running before `data` and `checks` are there.

    TensorFlow runs whatever does not need the batch at once: at the end of the data a step without
    a batch would still count, decay weights and decay learning rates.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if isinstance(leaf, tf.Tensor)]
    return tf.control_dependencies([*leaves, *checks])


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


def _fraction(count, total):
    if _all_static([count, total]):
        return count / total if total else 0.0
    return tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(total, tf.float32))


def _all_static(counts) -> bool:
    return all(isinstance(count, int) for count in counts)


def _replica_id() -> int:
    replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
    return replica_id if isinstance(replica_id, int) else int(tf.get_static_value(replica_id))
