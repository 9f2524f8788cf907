"""Losses over the global batch.

On N replicas the loss of a global batch is the sum of `share * loss` over the replicas, where
`share` is the replica's part of the examples. A mean over examples fits that as it stands. A sum, a
mean weighted by sample weights or by a mask does not: its divisor belongs to the global batch. Here
each of them is brought into a form whose share-weighted sum over the replicas is the one-device
value.

That is so for losses given to `compile`, whose reduction is known. What a train_step makes of a
loss by itself counts as a mean over its examples, which is what nearly every program means:
`reduce_mean(loss(y, p))` without reduction, `loss(y, p) / batch_size` of a sum. `global_sum` and
`global_mean` are for the others. Compiled losses that are no means at all are those of
`whole_losses`.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_layers, keras_losses, keras_routes, strategy_adapter
from kerasdist.support import memory
from kerasdist.training.losses import whole_losses
from kerasdist.training.replica import replicas
from kerasdist.training.replica.replicas import Divisor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """Where a thread is among the losses given to `compile`, while these are computed.

    Attributes:
        depth: How many losses are calling each other: 1 in one of these, 2 in one that it calls; 0
            before the first of them, also in a `__call__` of its own.
        compiled: Keras' object for what `compile` was given, where the next loss is one of it.
    """

    depth: int = 0
    compiled: Any = None


def reduce_weighted_values(
    original, values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
):
    """Reduces per-example losses like Keras, with the divisor of the global batch.

    Args:
        original: Keras' own function of this name.
        values: Losses [examples on this replica, ...].
        sample_weight: None, or weights that broadcast to `values`.
        mask: None, or the Keras mask of the predictions.
        reduction: One of Keras' loss reductions.
        dtype: As in Keras.

    Returns:
        Scalar. Multiplied by the share of each replica and summed over the replicas it is the loss
        that one device computes for the whole batch. Without reduction, the numbers of this
        replica's examples.
    """
    step = replicas.with_shares()
    loss = original(
        values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype
    )
    if step is None or (step.has_whole_batch and not step.options.callbacks):
        return loss
    if reduction in ("sum", "none", None):
        if reduction == "sum" and _is_compiled():
            step.losses.divisors.append(_sum_over_examples())
            return loss if step.has_whole_batch else _divide(loss, step.share)
        # The train_step makes a mean of it, or the loss has by itself. Numbers for each example
        # that are left as they are Keras adds up, see `compiled_loss`.
        if not _is_compiled() or loss.shape.rank == 0:
            step.losses.divisors.append(_mean_over_examples(step))
        return loss
    weights = _divisor_weights(sample_weight, mask, reduction)
    if weights is None:
        step.losses.divisors.append(_mean_over_examples(step))
        return loss
    local = tf.stop_gradient(tf.reduce_sum(tf.cast(weights, tf.float32)))
    total = local if step.has_whole_batch else replicas.sum_over_replicas([local])[0]
    step.losses.divisors.append(
        Divisor(name="the sum of its mask or weights", total=total, weights=weights)
    )
    if step.has_whole_batch:
        return loss
    fraction = tf.math.divide_no_nan(local, total)
    return loss * tf.cast(_divide(fraction, step.share), loss.dtype)


def build_losses(original, compiled, *args, **kwargs):
    """Stands before what makes ready the losses that are given to `compile`.

    One whose class has a `__call__` of its own need not call Keras', where `call_loss` stands.
    """
    original(compiled, *args, **kwargs)
    keras_losses.replace_losses(
        compiled,
        lambda loss: (
            functools.partial(_call_overridden, loss)
            if keras_routes.is_overridden(loss, "call_loss")
            else loss
        ),
    )


def compiled_loss(original, compiled, *args, **kwargs):
    """Stands before the call of the losses that are given to `compile`."""
    with _in_call(_Call(compiled=compiled)):
        loss = original(compiled, *args, **kwargs)
    step = replicas.with_shares()
    if step is None or loss is None or loss.shape.rank == 0:
        return loss
    step.losses.divisors.append(_sum_over_examples())
    if step.has_whole_batch or step.weighs_loss:
        return loss
    # Its gradient is weighed later, by the share of this replica.
    addend = _divide(weigh(loss, step), step.share)
    return addend + tf.stop_gradient(loss - addend)


def weigh(loss, step):
    """Returns a replica's part of a loss whose gradient one device takes.

    That of a loss with a number for each example is the gradient of their sum. Beside such numbers,
    a scalar of another output counts once for each.

    Args:
        loss: Of the examples of a replica.
        step: That of the replica.
    """
    if loss.shape.rank == 0:
        return loss * tf.cast(step.share, loss.dtype)
    # A replica without examples has one that does not count.
    return loss * tf.cast(tf.minimum(step.num_examples, 1), loss.dtype)


def call_loss(original, loss, *args, **kwargs):
    """Stands before the call of any loss: one that another calls is the user's to reduce."""
    outer = _call()
    if outer is None:
        return original(loss, *args, **kwargs)
    with _in_call(dataclasses.replace(outer, depth=outer.depth + 1, compiled=None)):
        return _call_once_or_whole(original, outer.compiled, loss, *args, **kwargs)


def _call_overridden(loss, *args, **kwargs):
    """Calls one of `compile`'s losses by a `__call__` of its class' own.

    What that calls in turn, as its `super()`, is reduced as if it were given to `compile`, too.
    """
    outer = _call()
    if outer is None:
        return loss(*args, **kwargs)
    with _in_call(_Call()):
        return _call_once_or_whole(operator.call, outer.compiled, loss, *args, **kwargs)


def _call_once_or_whole(original, compiled, loss, *args, **kwargs):
    """Calls a loss with this replica's examples or, where it needs them, with those of all."""
    if compiled is not None and whole_losses.sees_all(compiled, loss, args, kwargs):
        return whole_losses.compute(original, loss, *args, **kwargs)
    return original(loss, *args, **kwargs)


def scale_for_distribution(original, value):
    """Leaves a loss as it is: `share` weighs it here, where Keras divides by num_replicas."""
    if replicas.with_shares() is not None or _is_on_no_replica():
        return value
    return original(value)


def unscale_for_distribution(original, value):
    """Leaves a loss that is logged as it is, too."""
    return scale_for_distribution(original, value)


def _is_on_no_replica() -> bool:
    """Whether a loss is called in the scope of ours and outside of `strategy.run`: of all data."""
    strategy = tf.distribute.get_strategy()
    return strategy_adapter.is_adapted(strategy) and tf.distribute.in_cross_replica_context()


def update_mean(original, metric, values, sample_weight=None):
    """Updates a `keras.metrics.Mean` so that a scalar counts once per global batch.

    A loss that is tracked as one number per batch would count once per replica.
    """
    step = replicas.with_shares()
    if step is None:
        return original(metric, values, sample_weight)
    values = keras.ops.convert_to_tensor(values)
    if len(values.shape) > 0:
        return original(metric, values, sample_weight)
    step.losses.means[metric.name] = values
    if step.has_whole_batch:
        return original(metric, values, sample_weight)
    return original(metric, values, step.share if sample_weight is None else sample_weight)


def add_loss(original, layer, loss):
    """Stands before `Layer.add_loss`: each replica has a list of its own.

    The replicas take turns wherever they send a message, and Keras keeps one list for all.
    """
    step = replicas.current()
    if step is None:
        return original(layer, loss)
    if not step.has_whole_batch and keras_losses.is_sum_over_batch(layer):
        loss = _divide(loss, step.share)
    added = keras_losses.losses_added_by(layer)
    num_before = len(added)
    original(layer, loss)
    step.losses.added.setdefault(id(layer), []).extend(added[num_before:])
    del added[num_before:]
    return None


def own_losses(original, layer) -> list:
    """Stands before the getter of what a layer has added by itself."""
    step = replicas.current()
    return original(layer) if step is None else list(step.losses.added.get(id(layer), ()))


def clear_losses(original, layer) -> None:
    """Stands before what forgets the losses of a layer and those inside, when it is called."""
    step = replicas.current()
    if step is None:
        original(layer)
        return
    for each in keras_layers.layers_of(layer):
        step.losses.added.pop(id(each), None)


def global_sum(values):
    """Returns the sum over the global batch; see `kerasdist.global_sum`."""
    values = _floating(values)
    step = replicas.current()
    if step is None or step.has_whole_batch:
        return tf.reduce_sum(values)
    return _global(tf.reduce_sum(values), step)


def global_mean(values, weights=None):
    """Returns the weighted mean over the global batch; see `kerasdist.global_mean`."""
    values = _floating(values)
    weights = tf.ones_like(values) if weights is None else tf.cast(weights, values.dtype)
    weights = tf.broadcast_to(weights, tf.shape(values))
    step = replicas.current()
    if step is None or step.has_whole_batch:
        total, divisor = tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        return tf.math.divide_no_nan(total, divisor)
    divisor = replicas.sum_over_replicas([tf.reduce_sum(weights)])[0]
    return _global(tf.math.divide_no_nan(tf.reduce_sum(values * weights), divisor), step)


def _floating(values):
    """Returns a tensor; ints and bools, whose share would be cut to a whole number, as floats."""
    values = keras.ops.convert_to_tensor(values)
    is_number = values.dtype.is_integer or values.dtype.is_bool
    return tf.cast(values, keras.config.floatx()) if is_number else values


def _global(part, step):
    """Returns the sum of every replica's part, with the gradient that `share` makes whole."""
    total = tf.stop_gradient(replicas.sum_over_replicas([part])[0])
    part = _divide(part, step.share)
    whole = part + tf.stop_gradient(total - part)
    if step.dependence:
        step.dependence.end_at([whole])
    return whole


def _sum_over_examples():
    return Divisor(name="1 (a sum)", total=None)


def _mean_over_examples(step):
    return Divisor(name="the number of examples", total=step.global_num_examples)


def _divisor_weights(sample_weight, mask, reduction):
    """Returns the tensor whose sum Keras divides by, or None where it is the number of values."""
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return keras_losses.masked_weights(sample_weight, mask)
    return mask


def _is_compiled() -> bool:
    """Whether a loss that is reduced now is one of those given to `compile`, not one it calls."""
    call = _call()
    return call is not None and call.depth <= 1


def _call() -> _Call | None:
    return memory.THREAD.loss_call


@contextlib.contextmanager
def _in_call(call: _Call) -> Generator[None]:
    outer, memory.THREAD.loss_call = _call(), call
    try:
        yield
    finally:
        memory.THREAD.loss_call = outer


def _divide(value, share):
    return tf.math.divide_no_nan(value, tf.cast(share, value.dtype))
