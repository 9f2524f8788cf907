"""Losses over the global batch.

On N replicas the loss of a global batch is the sum of `share * loss` over the replicas, where
`share` is the replica's part of the examples. A mean over examples fits that as it stands. A sum, a
mean weighted by sample weights or by a mask does not: its divisor belongs to the global batch. Here
each of them is brought into a form whose share-weighted sum over the replicas is the one-device
value.
"""

import keras
import tensorflow as tf

from kerasdist.training import data_checks, replica_step


def reduce_weighted_values(
    stock, values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
):
    """Reduces per-example losses like Keras, with the divisor of the global batch.

    Args:
        stock: Keras' own function of this name.
        values: Losses [examples on this replica, ...].
        sample_weight: None, or weights that broadcast to `values`.
        mask: None, or the Keras mask of the predictions.
        reduction: One of Keras' loss reductions.
        dtype: As in Keras.

    Returns:
        Scalar (a vector without reduction). Multiplied by the share of each replica and summed over
        the replicas it is the loss that one device computes for the whole batch.
    """
    step = replica_step.current()
    loss = stock(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
    if step is None or step.is_only_replica:
        return loss
    data_checks.check_loss_shape(keras.ops.convert_to_tensor(values), step.num_examples)
    if reduction in ("sum", "none", None):
        return _divide(loss, step.share)
    weights = _divisor_weights(sample_weight, mask, reduction)
    if weights is None:
        return loss
    return loss * tf.cast(_divide(_fraction_of_all_replicas(weights), step.share), loss.dtype)


def scale_for_distribution(stock, value):
    """Leaves a loss as it is: `share` weighs it here, where Keras divides by num_replicas."""
    return value if replica_step.current() is not None else stock(value)


def update_mean(stock, metric, values, sample_weight=None):
    """Updates a `keras.metrics.Mean` so that a scalar counts once per global batch.

    A loss that is tracked as one number per batch would count once per replica, and a replica
    without examples as much as the others (or as NaN).
    """
    step = replica_step.current()
    if step is None:
        return stock(metric, values, sample_weight)
    values = keras.ops.convert_to_tensor(values)
    if len(values.shape) > 0:
        return stock(metric, values, sample_weight)
    if step.may_be_empty and not step.is_only_replica:
        values = tf.where(step.num_examples > 0, values, tf.zeros_like(values))
    step.losses[metric.name] = values
    if step.is_only_replica:
        return stock(metric, values, sample_weight)
    return stock(metric, values, step.share if sample_weight is None else sample_weight)


def _divisor_weights(sample_weight, mask, reduction):
    """Returns the tensor whose sum Keras divides by, or None where it is the number of values."""
    if reduction == "mean_with_sample_weight":
        if sample_weight is None or mask is None:
            return sample_weight if mask is None else mask
        sample_weight = tf.cast(sample_weight, tf.float32)
        mask = tf.cast(mask, tf.float32)
        if sample_weight.shape.rank == mask.shape.rank - 1:
            sample_weight = sample_weight[..., tf.newaxis]
        return sample_weight * mask
    return mask


def _fraction_of_all_replicas(weights):
    local = tf.stop_gradient(tf.reduce_sum(tf.cast(weights, tf.float32)))
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, local)
    return tf.math.divide_no_nan(local, total)


def _divide(value, share):
    return tf.math.divide_no_nan(value, tf.cast(share, value.dtype))
