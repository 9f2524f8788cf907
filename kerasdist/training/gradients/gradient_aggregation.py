"""The gradient of the global batch: one sum over the replicas, before anything else uses it.

Stock Keras clips, accumulates and averages on every replica before the gradients meet. Here they
meet first. What follows (clipping, weight decay, the update, moving averages) then sees the same
gradient on every replica and touches only that replica's copy of the variables, which needs no
communication and may stand inside a `tf.cond`.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import collectives, keras_optimizers, scopes, strategy_adapter
from kerasdist.support import memory
from kerasdist.training.context import peers
from kerasdist.training.context.announcements import announce
from kerasdist.training.gradients.sliced_gradients import Parcel
from kerasdist.training.hooks import called_optimizers, scope_checks, update_callback
from kerasdist.training.hooks.gradient_values import map_values, values_of
from kerasdist.training.replica import draws, replicas
from kerasdist.training.replica.dependence import Dependence

_OF_LOOP = (
    "Gradients: the loop has all-reduced them, so `optimizer.apply` takes them as they are. Keras "
    "alone would add up those of all replicas once more; leave out a division that makes up for it."
)


def apply(original, optimizer, gradients, trainable_variables=None):
    """Stands before `optimizer.apply`: sums the replicas' gradients, then applies the sum.

    Raises:
        RuntimeError: A loop of the user's own calls it outside of the scope of the optimizer or of
            the weights; or, with several replicas, outside of `strategy.run`.
    """
    step = replicas.current()
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    if step is None or step.is_of_loop:
        variables = trainable_variables or keras_optimizers.variables_trained_by(optimizer)
        scope_checks.check_loop_scope(optimizer, variables)
    if step is None:
        return _apply_outside_steps(original, optimizer, gradients, trainable_variables)
    step.updates.graphs.append(tf.compat.v1.get_default_graph())
    gradients = list(gradients)
    if not gradients:  # As for Keras, this is no update, and does not build the optimizer.
        return original(optimizer, gradients, trainable_variables)
    called_optimizers.note(optimizer)
    if step.trial is not None:
        return _rehearse_update(optimizer, gradients, trainable_variables, step)
    if step.is_of_loop and not strategy_adapter.is_adapted(scopes.strategy_of(optimizer)):
        with tf.init_scope():
            keras_optimizers.adopt(optimizer, tf.distribute.get_strategy())
    if not optimizer.built:
        # For the variables themselves, not for what stands in for them in the step.
        with _local_updates(False), tf.init_scope(), step.delivery.updating(optimizer):
            keras_optimizers.build(optimizer, list(trainable_variables or []))
    variables = list(trainable_variables or keras_optimizers.variables_trained_by(optimizer))
    if is_in_own_apply():
        gradients = _aggregate_anew(variables, gradients, step)
        update = functools.partial(step.delivery.apply, original, optimizer, gradients, variables)
        return step.delivery.carry_out(update)
    if is_aggregated():
        return _update(original, optimizer, gradients, variables, step)
    # Those of a LossScaleOptimizer may be infinite: it judges them itself.
    own = [] if _scales(optimizer) else list(map(step.whole_gradients.own, gradients))
    for callback in update_callback.of_step(step.options.callbacks):
        step.extra_sums.update(callback.extra_sums(own))
    gradients = _aggregate_of(variables, gradients, step, _division_of(optimizer, step))
    draws_seen = draws.looked_for_in_update(optimizer, step)
    with _local_updates(), draws_seen, step.delivery.updating(optimizer):
        return _update(original, optimizer, gradients, variables, step)


def _rehearse_update(optimizer, gradients, variables, step) -> None:
    variables = variables or keras_optimizers.variables_trained_by(optimizer)
    pairs = [
        (getattr(variable, "path", variable.name), gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
        if not is_overwritten(variable)
    ]
    keep_update(
        [path for path, _ in pairs],
        [gradient for _, gradient in pairs],
        step,
        factor=_division_of(optimizer, step),
    )


def _apply_outside_steps(original, optimizer, gradients, variables):
    strategy = scopes.strategy_of(optimizer)
    if not strategy_adapter.is_adapted(strategy) or not tf.distribute.in_cross_replica_context():
        return original(optimizer, gradients, variables)
    scope_checks.check_on_replica("`optimizer.apply`")
    # Loops written for one device do not know of `strategy.run`.
    run = functools.partial(original, optimizer, list(gradients), variables)
    return peers.on_replicas(strategy, tf.autograph.experimental.do_not_convert(run))


def keep_update(
    paths: list[str], gradients: list, step: replicas.Replica, *, factor: int = 1
) -> None:
    """Keeps the gradient of the global batch in `step.trial`, by the paths of what has it."""
    assert step.trial is not None
    step.trial.updates.append((paths, _aggregate_others(gradients, step, factor)))


def aggregate(gradients: list, step: replicas.Replica, factor: int = 1) -> list:
    """Returns the gradient of the global batch, the same on every replica.

    Args:
        gradients: Tensors, IndexedSlices or None (which stay None), of this replica's mean loss; of
            `share` times that loss where `step.weighs_loss`.
        step: The step they were computed in.
        factor: What their loss was divided by; of no meaning where `step.weighs_loss`.
    """
    if step.is_alone:
        step.sums.update(step.extra_sums)
        return gradients
    cannot_meet = tf.compat.v1.get_default_graph() is not step.graph
    if step.has_whole_batch and cannot_meet and not set(step.extra_sums) - set(step.sums):
        return gradients  # All replicas have the same.
    present = [gradient for gradient in gradients if gradient is not None]
    if not present and not (set(step.extra_sums) - set(step.sums)):
        return gradients
    are_dense = not any(isinstance(each, tf.IndexedSlices) for each in present)
    if not (step.has_whole_batch and are_dense and collectives.is_recorded()):
        return _summed(gradients, step, factor)
    with collectives.without_gradient():
        summed = _summed(gradients, step, factor)
    # The first replica alone has been summed; what the others compute from it is the same, with a
    # gradient of their own.
    collectives.give_gradient(
        [each for each in summed if each is not None],
        present,
        lambda *upstream: [each * tf.cast(factor, each.dtype) for each in upstream],
        name="GradientOfFirstReplica",
    )
    return summed


def _summed(gradients: list, step: replicas.Replica, factor: int) -> list:
    present = [gradient for gradient in gradients if gradient is not None]
    parcels = [Parcel(gradient, step.dependence) for gradient in present]
    sent = [tensor for parcel in parcels for tensor in parcel.tensors]
    if not step.weighs_loss:
        sent = [_weigh(tensor, step, factor) for tensor in sent]
    extra_sums = [name for name in step.extra_sums if name not in step.sums]
    # Made on the replica's device: TensorFlow asks for one.
    values = [tf.identity(step.extra_sums[name]) for name in extra_sums]
    summed = step.exchange(_sum_over_replicas, [*sent, *values])
    if step.dependence:
        step.dependence.end_at(summed)
    step.sums.update(zip(extra_sums, summed[len(sent) :], strict=True))
    sums = iter(summed)
    whole = iter(
        [parcel.unpacked(itertools.islice(sums, len(parcel.tensors))) for parcel in parcels]
    )
    return [None if gradient is None else next(whole) for gradient in gradients]


def _aggregate_of(variables, gradients: list, step, factor) -> list:
    """Returns what `aggregate` does, and the largest value where it is to overwrite the variable.

    So do the gradients of Keras' float8 layers, which are the largest inputs that they have seen.
    """
    overwrites = [is_overwritten(variable) for variable in variables]
    if step.is_alone or not any(overwrites):
        return _aggregate_others(gradients, step, factor)
    pairs = list(zip(gradients, overwrites, strict=True))
    others = [gradient for gradient, overwrites in pairs if not overwrites]
    summed = iter(_aggregate_others(others, step, factor))
    return [_largest(gradient) if overwrites else next(summed) for gradient, overwrites in pairs]


def _aggregate_others(gradients: list, step, factor) -> list:
    """Returns what `aggregate` does, and those gradients as they are that replicas have in common.

    These are what the tape has given for the global batch, and what is made of it.
    """
    are_common = [_is_common(gradient, step) for gradient in gradients]
    others = [each for each, is_common in zip(gradients, are_common, strict=True) if not is_common]
    # Slices of the same rows on all replicas add up by their values, not one after the other.
    have_rows = list(map(step.whole_gradients.has_rows_of, others))
    given = [
        values_of(other) if has else other for other, has in zip(others, have_rows, strict=True)
    ]
    summed = iter(
        map_values(other, lambda _, total=total: total) if has else total
        for other, has, total in zip(others, have_rows, aggregate(given, step, factor), strict=True)
    )
    pairs = zip(gradients, are_common, strict=True)
    return [gradient if is_common else next(summed) for gradient, is_common in pairs]


def _is_common(gradient, step) -> bool:
    if gradient in step.whole_gradients:
        return True
    if not step.whole_gradients or gradient is None or step.dependence is None:
        return False
    if step.is_of_loop:
        is_common = step.dependence.is_common_by_now(gradient) and _is_made_of_whole(gradient, step)
        if is_common and peers.is_chief(tf.distribute.get_strategy()):
            announce(_OF_LOOP)
        return is_common
    # Where replicas can meet, a variable may have on each what it has seen of its own examples:
    # the mean of gradients that are the same is the same again.
    cannot_meet = tf.compat.v1.get_default_graph() is not step.graph
    return step.dependence.is_common(gradient, may_read=cannot_meet)


def _is_made_of_whole(gradient, step) -> bool:
    """Whether a gradient is computed from what a loop has all-reduced; True where no graph says."""
    return tf.executing_eagerly() or Dependence(step.whole_gradients.tensors()).is_in(gradient)


def _aggregate_anew(variables, gradients: list, step) -> list:
    """Returns gradients that an own `apply` has made of those of the global batch.

    Those that it has computed anew, from the examples of this replica, meet here.
    """
    is_of_batch = not tf.executing_eagerly() and step.dependence.is_in(gradients)
    if step.is_alone or not is_of_batch:
        return gradients
    # Nobody has scaled their loss.
    step = dataclasses.replace(step, weighs_loss=False, extra_sums={})
    with _local_updates(False):
        return _aggregate_of(variables, gradients, step, 1)


def is_overwritten(variable) -> bool:
    """Whether a variable gets its gradient as its value, as those of Keras' float8 layers do."""
    return getattr(variable, "overwrite_with_gradient", False)


def _largest(value):
    """Returns the largest values over the replicas: of the same shape."""
    context: Any = tf.distribute.get_replica_context()
    return tf.reduce_max(context.all_gather(value[tf.newaxis], axis=0), axis=0)


def _division_of(optimizer, step) -> int:
    """Returns what the loss of an optimizer's gradients is still divided by.

    An optimizer around another one may scale the loss with that.
    """
    optimizers = keras_optimizers.nested(optimizer)
    divided = [
        each
        for division in step.losses.divisions
        if not division.is_undone
        for each in keras_optimizers.nested(division.optimizer)
    ]
    is_divided = any(each is one for each in divided for one in optimizers)
    return num_replicas() if is_divided else 1


def num_replicas() -> int:
    """Returns the number of replicas of the strategy of this thread."""
    return peers.num_replicas(tf.distribute.get_strategy())


def all_reduce(original, optimizer, gradients_and_variables):
    """Stands before Keras' all-reduce, which comes too late: the gradients are summed already."""
    if is_aggregated():
        return list(gradients_and_variables)
    return original(optimizer, gradients_and_variables)


def is_aggregated() -> bool:
    """Whether this thread holds aggregated gradients and updates its own copy of the variables."""
    return memory.THREAD.is_aggregated


@contextlib.contextmanager
def _local_updates(are_local: bool = True) -> Generator[None]:
    outer, memory.THREAD.is_aggregated = is_aggregated(), are_local
    try:
        yield
    finally:
        memory.THREAD.is_aggregated = outer


def is_in_own_apply() -> bool:
    """Whether this thread is in an `apply` of the user's own, which has aggregated gradients."""
    return memory.THREAD.is_in_custom_apply


@contextlib.contextmanager
def in_own_apply() -> Generator[None]:
    """Calls such an `apply`: what Keras' own then gets has had the callbacks already."""
    memory.THREAD.is_in_custom_apply = True
    try:
        yield
    finally:
        memory.THREAD.is_in_custom_apply = False


def _update(original, optimizer, gradients, variables, step):
    """Updates this replica's variables with the gradients of the global batch."""
    if _scales(optimizer):  # It unscales the gradients for its inner one, which comes by here.
        for callback in update_callback.of_step(step.options.callbacks):
            gradients = callback.guard_scaled(gradients, optimizer)
        return original(optimizer, gradients, variables)
    if not step.options.callbacks:
        delivery = step.delivery
        apply_all = functools.partial(delivery.apply, original, optimizer, gradients, variables)
        return delivery.carry_out(apply_all, is_divided=keras_optimizers.divides(optimizer))
    step.updates.optimizers.append(optimizer)
    pairs = list(zip(gradients, variables, strict=True))
    # Those that overwrite are no gradients, and none of the callbacks' business.
    overwriting = [pair for pair in pairs if is_overwritten(pair[1])]
    scale = optimizer.loss_scale_factor or 1.0

    def update(pairs):
        if pairs:
            scaled = [(_scaled(gradient, scale), variable) for gradient, variable in pairs]
            values, updated = map(list, zip(*scaled, *overwriting, strict=True))
            step.delivery.apply(original, optimizer, values, updated)
        for callback in step.options.callbacks:
            callback.after_update(variables)

    unscaled = [
        (_scaled(gradient, 1 / scale), variable)
        for gradient, variable in pairs
        if not is_overwritten(variable)
    ]
    is_divided = keras_optimizers.divides(optimizer)
    _update_with_callbacks(unscaled, update, step, is_divided=is_divided)
    return None


def _scales(optimizer) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _update_with_callbacks(pairs: list, update: Callable, step, *, is_divided: bool) -> None:
    """Lets the callbacks of a step see and change gradients before `update` gets them."""
    observers = update_callback.of_step(step.options.callbacks)

    def apply(pairs):
        for observer in observers:
            observer.observe_update(pairs)
        step.delivery.carry_out(functools.partial(update, pairs), is_divided=is_divided)

    for observer in observers:
        observer.observe_gradients(pairs)
    update_callback.apply_in_order(step.options.callbacks, pairs, apply)


def _sum_over_replicas(tensors: list) -> list:
    """Returns tensors and IndexedSlices summed over all replicas, with one message per dtype."""
    given, tensors = tensors, [_sendable(tensor) for tensor in tensors]
    is_recorded = collectives.is_recorded()
    summed = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        positions = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        group = [tensors[index] for index in positions]
        are_dense = not any(isinstance(each, tf.IndexedSlices) for each in group)
        # A program that differentiates once more, such as one with a penalty for gradients.
        is_differentiable = is_recorded and are_dense and dtype.is_floating
        sum_up = replicas if is_differentiable else collectives
        sums = sum_up.sum_over_replicas(group)
        for index, value in zip(positions, sums, strict=True):
            summed[index] = _cast(value, given[index].dtype)
    return summed


def _sendable(tensor):
    """Returns slices of bfloat16 as float32: TensorFlow cannot gather them over several workers."""
    is_sliced = isinstance(tensor, tf.IndexedSlices)
    return _cast(tensor, tf.float32) if is_sliced and tensor.dtype == tf.bfloat16 else tensor


def _cast(tensor, dtype):
    if tensor.dtype == dtype:
        return tensor
    return map_values(tensor, lambda values: tf.cast(values, dtype))


def _scaled(gradient, factor):
    return gradient if factor == 1.0 else map_values(gradient, lambda values: values * factor)


def _weigh(gradient, step, factor):
    # What a replica without examples computes counts for nothing, NaN included.
    multiply = tf.math.multiply_no_nan if step.may_be_empty else tf.multiply
    weight = step.share * factor
    return map_values(gradient, lambda values: multiply(values, tf.cast(weight, values.dtype)))
