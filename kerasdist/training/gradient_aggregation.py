"""The gradient of the global batch: one sum over the replicas, before anything else uses it.

Stock Keras clips, accumulates and averages on every replica before the gradients meet. Here they
meet first. What follows (clipping, weight decay, the update, moving averages) then sees the same
gradient on every replica and touches only that replica's copy of the variables, which needs no
communication and may stand inside a `tf.cond`.
"""

import contextlib
import threading

import tensorflow as tf

from kerasdist.training import replica_step, scope_checks

_local = threading.local()


def apply(stock, optimizer, gradients, trainable_variables=None):
    """Stands before `optimizer.apply`: sums the replicas' gradients, then applies the sum.

    Raises:
        RuntimeError: The optimizer belongs to a strategy and the model that uses it does not.
    """
    step = replica_step.current()
    if step is None:
        scope_checks.check_optimizer_scope(optimizer)
    if step is None or is_aggregated():
        return stock(optimizer, gradients, trainable_variables)
    gradients, variables = list(gradients), trainable_variables and list(trainable_variables)
    if not optimizer.built and variables:
        with tf.init_scope():
            optimizer.build(variables)
    gradients = aggregate(gradients, step)
    with _local_updates():
        return stock(optimizer, gradients, variables)


def aggregate(gradients: list, step: replica_step.ReplicaStep) -> list:
    """Returns the gradient of the global batch, the same on every replica.

    Args:
        gradients: Tensors, IndexedSlices or None (which stay None), of this replica's mean loss; of
            `share` times that loss where `step.weighs_loss`.
        step: The step they were computed in.
    """
    if step.is_only_replica:
        return gradients
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return gradients
    if not step.weighs_loss:
        present = [_weigh(gradient, step) for gradient in present]
    context = tf.distribute.get_replica_context()
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if gradient is None else next(summed) for gradient in gradients]


def scale_loss(stock, optimizer, loss):
    """Stands before `optimizer.scale_loss`: weighs the loss by the replica's share.

    Keras' own train_step calls it right before the backward pass, where one multiplication does the
    work of one per gradient.
    """
    step = replica_step.current()
    if step is not None and step.weighs_loss and not step.is_only_replica and not is_aggregated():
        loss = loss * tf.cast(step.share, loss.dtype)
    return stock(optimizer, loss)


def all_reduce(stock, optimizer, gradients_and_variables):
    """Stands before Keras' all-reduce, which comes too late: the gradients are summed already."""
    if is_aggregated():
        return list(gradients_and_variables)
    return stock(optimizer, gradients_and_variables)


def is_aggregated() -> bool:
    """Whether this thread holds aggregated gradients and updates its own copy of the variables."""
    return getattr(_local, "is_aggregated", False)


@contextlib.contextmanager
def _local_updates():
    _local.is_aggregated = True
    try:
        yield
    finally:
        _local.is_aggregated = False


def _weigh(gradient, step):
    # A replica without examples may hold NaN (a mean over nothing), which counts for nothing.
    multiply = tf.math.multiply_no_nan if step.may_be_empty else tf.multiply
    if isinstance(gradient, tf.IndexedSlices):
        values = multiply(gradient.values, tf.cast(step.share, gradient.values.dtype))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return multiply(gradient, tf.cast(step.share, gradient.dtype))
