"""Losses over the global batch.

On N replicas the loss of a global batch is the sum of `share * loss` over the replicas, where
`share` is the replica's part of the examples. A mean over examples fits that as it stands. A sum, a
mean weighted by sample weights or by a mask does not: its divisor belongs to the global batch. Here
each of them is brought into a form whose share-weighted sum over the replicas is the one-device
value.
"""

import keras
import tensorflow as tf

from kerasdist.training import data_checks, keras_adapter, replica_step
from kerasdist.training.replica_step import Divisor


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
    if step is None or (step.is_only_replica and not step.callbacks):
        return loss
    if not step.is_only_replica:
        data_checks.check_loss_shape(keras.ops.convert_to_tensor(values), step.num_examples)
    if reduction in ("sum", "none", None):
        step.divisors.append(Divisor(name="1 (a sum)", total=None))
        return loss if step.is_only_replica else _divide(loss, step.share)
    weights = _divisor_weights(sample_weight, mask, reduction)
    if weights is None:
        step.divisors.append(Divisor(name="the number of examples", total=step.global_num_examples))
        return loss
    local = tf.stop_gradient(tf.reduce_sum(tf.cast(weights, tf.float32)))
    total = local if step.is_only_replica else _sum_over_replicas(local)
    step.divisors.append(
        Divisor(name="the sum of its mask or weights", total=total, weights=weights)
    )
    if step.is_only_replica:
        return loss
    fraction = tf.math.divide_no_nan(local, total)
    return loss * tf.cast(_divide(fraction, step.share), loss.dtype)


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
    if reduction != "mean_with_sample_weight" or sample_weight is None:
        return mask
    return keras_adapter.masked_weights(sample_weight, mask)


def _sum_over_replicas(value):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def _divide(value, share):
    return tf.math.divide_no_nan(value, tf.cast(share, value.dtype))
