"""Compute losses over the global batch.

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
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_layers, keras_losses, keras_routes, strategy_adapter
from kerasdist.training.losses import whole_losses
from kerasdist.training.replica import replicas
from kerasdist.training.replica.notes import Divisor, ScalarUpdate
from kerasdist.training.replica.replicas import Part, Replica


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """Where a replica is among the losses given to `compile`, while these are computed.

    Attributes:
        depth: How many losses are calling each other: 1 in one of these, 2 in one that it calls; 0
            before the first of them, also in a `__call__` of its own.
        compiled: Keras' object for what `compile` was given, where the next loss is one of it.
    """

    depth: int = 0
    compiled: Any = None


def reduce_weighted_values(
    replica: Replica,
    original: Callable,
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> tf.Tensor:
    """Reduces per-example losses like Keras, with the divisor of the global batch.

    Args:
        replica: The one that computes it, in a step of ours.
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
    loss = original(
        values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype
    )
    if not replica.needs_divisors():
        return loss
    if reduction in ("sum", "none", None):
        divisor = _divisor_of_sum(replica, loss, reduction)
    else:
        divisor = _divisor_of_mean(replica, sample_weight, mask, reduction)
    if divisor is None:
        return loss
    replica.losses.divisors.append(dataclasses.replace(divisor, loss=loss))
    return replica.mean_of_batch(loss, divisor)


def _divisor_of_sum(replica: Replica, loss: tf.Tensor, reduction: str | None) -> Divisor | None:
    if reduction == "sum" and _is_compiled(replica):
        return _sum_over_examples()
    # The train_step makes a mean of it, or the loss has by itself. Numbers for each example that
    # are left as they are Keras adds up, see `compiled_loss`.
    if not _is_compiled(replica) or loss.shape.rank == 0:
        return _mean_over_examples(replica)
    return None


def _divisor_of_mean(replica: Replica, sample_weight: Any, mask: Any, reduction: str) -> Divisor:
    weights = _divisor_weights(sample_weight, mask, reduction)
    if weights is None:
        return _mean_over_examples(replica)
    local = tf.stop_gradient(tf.reduce_sum(tf.cast(weights, tf.float32)))
    name, total = "the sum of its mask or weights", replica.total(local)
    return Divisor(name=name, total=total, weights=weights, local=local)


def build_losses(original: Callable, compiled: Any, *args: Any, **kwargs: Any) -> None:
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


def compiled_loss(
    replica: Replica, original: Callable, compiled: Any, *args: Any, **kwargs: Any
) -> Any:
    """Stands before the call of the losses that are given to `compile`."""
    with _in_call(replica, _Call(compiled=compiled)):
        loss = original(compiled, *args, **kwargs)
    if loss is None or loss.shape.rank == 0:
        return loss
    replica.losses.divisors.append(_sum_over_examples())
    return replica.sum_of_numbers(loss)


def call_loss(
    replica: Replica, original: Callable, loss: keras.Loss, *args: Any, **kwargs: Any
) -> Any:
    """Stands before the call of any loss: one that another calls is the user's to reduce."""
    outer = replica.losses.call
    if outer is None:
        return original(loss, *args, **kwargs)
    with _in_call(replica, dataclasses.replace(outer, depth=outer.depth + 1, compiled=None)):
        return _call_once_or_whole(replica, original, outer.compiled, loss, *args, **kwargs)


def _call_overridden(loss: keras.Loss, *args: Any, **kwargs: Any) -> Any:
    """Calls one of `compile`'s losses by a `__call__` of its class' own.

    What that calls in turn, as its `super()`, is reduced as if it were given to `compile`, too.
    """
    replica = replicas.current()
    outer = None if replica is None else replica.losses.call
    if replica is None or outer is None:
        return loss(*args, **kwargs)
    with _in_call(replica, _Call()):
        compiled = outer.compiled
        return _call_once_or_whole(replica, operator.call, compiled, loss, *args, **kwargs)


def _call_once_or_whole(
    replica: Replica, original: Callable, compiled: Any, loss: keras.Loss, *args: Any, **kwargs: Any
) -> Any:
    """Calls a loss with this replica's examples or, where it needs them, with those of all."""
    if compiled is not None and whole_losses.sees_all(replica, compiled, loss, args, kwargs):
        assert isinstance(replica, Part)
        return whole_losses.compute(replica, original, loss, *args, **kwargs)
    return original(loss, *args, **kwargs)


def scale_for_distribution(original: Callable, value: Any) -> Any:
    """Leaves a loss as it is: `share` weighs it here, where Keras divides by num_replicas."""
    is_weighed = isinstance(replicas.current(), replicas.OF_STEP)
    return value if is_weighed or _is_on_no_replica() else original(value)


def _is_on_no_replica() -> bool:
    """Whether a loss is called in the scope of ours and outside of `strategy.run`: of all data."""
    strategy = tf.distribute.get_strategy()
    return strategy_adapter.is_adapted(strategy) and tf.distribute.in_cross_replica_context()


def update_mean(
    replica: Replica,
    original: Callable,
    metric: keras.metrics.Mean,
    values: Any,
    sample_weight: Any = None,
) -> Any:
    """Updates a `keras.metrics.Mean` so that a scalar counts once per global batch.

    A loss that is tracked as one number per batch would count once per replica.
    """
    values = keras.ops.convert_to_tensor(values)
    if len(values.shape) > 0:
        return original(metric, values, sample_weight)
    replica.losses.means[metric.name] = values
    is_weighed = sample_weight is not None
    noted = ScalarUpdate(metric=metric, value=values, is_weighed=is_weighed)
    replica.losses.scalars.append(noted)
    weight = replica.weight_of_mean() if sample_weight is None else sample_weight
    return original(metric, values, weight)


def add_loss(
    replica: Replica, original: Callable, layer: keras.layers.Layer, loss: tf.Tensor
) -> None:
    """Stands before `Layer.add_loss`: each replica has a list of its own.

    The replicas take turns wherever they send a message, and Keras keeps one list for all.
    """
    if keras_losses.is_sum_over_batch(layer):
        loss = replica.unweigh(loss)
    added = keras_losses.losses_added_by(layer)
    num_before = len(added)
    original(layer, loss)
    replica.losses.added.setdefault(id(layer), []).extend(added[num_before:])
    del added[num_before:]


def own_losses(replica: Replica, original: Callable, layer: keras.layers.Layer) -> list:
    """Stands before the getter of what a layer has added by itself."""
    return list(replica.losses.added.get(id(layer), ()))


def clear_losses(replica: Replica, original: Callable, layer: keras.layers.Layer) -> None:
    """Stands before what forgets the losses of a layer and those inside, when it is called."""
    for each in keras_layers.layers_of(layer):
        replica.losses.added.pop(id(each), None)


def global_sum(values: Any) -> tf.Tensor:
    """Returns the sum over the global batch; see `kerasdist.global_sum`."""
    replica, total = replicas.divided(), tf.reduce_sum(_floating(values))
    _note_use_of_all("kerasdist.global_sum")
    return total if replica is None else replica.sum_of_parts(total)


def global_mean(values: Any, weights: Any = None) -> tf.Tensor:
    """Returns the weighted mean over the global batch; see `kerasdist.global_mean`."""
    values = _floating(values)
    if weights is not None:
        _note_use_of_all("the weights of kerasdist.global_mean")
    weights = tf.ones_like(values) if weights is None else tf.cast(weights, values.dtype)
    weights = tf.broadcast_to(weights, tf.shape(values))
    replica = replicas.divided()
    if replica is None:
        total, divisor = tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        return tf.math.divide_no_nan(total, divisor)
    divisor = replica.total(tf.reduce_sum(weights))
    return replica.sum_of_parts(tf.math.divide_no_nan(tf.reduce_sum(values * weights), divisor))


def _note_use_of_all(name: str) -> None:
    """Notes for whoever asks that something is divided by what one batch of several lacks."""
    replica = replicas.current()
    if replica is not None and replica.delivery.needs_divisors:
        name = f"what all examples give ({name})"
        replica.losses.divisors.append(Divisor(name=name, total=None))


def _floating(values: Any) -> tf.Tensor:
    """Returns a tensor; ints and bools, whose share would be cut to a whole number, as floats."""
    values = keras.ops.convert_to_tensor(values)
    is_number = values.dtype.is_integer or values.dtype.is_bool
    return tf.cast(values, keras.config.floatx()) if is_number else values


def _sum_over_examples() -> Divisor:
    return Divisor(name="1 (a sum)", total=None)


def _mean_over_examples(replica: Replica) -> Divisor:
    return Divisor(name="the number of examples", total=replica.global_num_examples)


def _divisor_weights(sample_weight: Any, mask: Any, reduction: str) -> Any:
    """Returns the tensor whose sum Keras divides by, or None where it is the number of values."""
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return keras_losses.masked_weights(sample_weight, mask)
    return mask


def _is_compiled(replica: Replica) -> bool:
    """Whether a loss that is reduced now is one of those given to `compile`, not one it calls."""
    call = replica.losses.call
    return call is not None and call.depth <= 1


@contextlib.contextmanager
def _in_call(replica: Replica, call: _Call) -> Generator[None]:
    outer, replica.losses.call = replica.losses.call, call
    try:
        yield
    finally:
        replica.losses.call = outer
