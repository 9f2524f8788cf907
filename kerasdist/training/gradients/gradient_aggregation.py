"""Sum the gradients of the replicas, once and before anything else uses them.

Keras alone clips, accumulates and averages on every replica before the gradients meet. Here they
meet first. What follows (clipping, weight decay, the update, moving averages) then sees the same
gradient on every replica and touches only that replica's copy of the variables, which needs no
communication and may stand inside a `tf.cond`.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import collectives, keras_optimizers, scopes, strategy_adapter
from kerasdist.support.terminal import announce
from kerasdist.training.context import deployment, peers
from kerasdist.training.gradients import narrow_sums
from kerasdist.training.gradients.sliced_gradients import Parcel
from kerasdist.training.hooks import called_optimizers, scope_checks, update_callback
from kerasdist.training.hooks.gradient_values import map_values, values_of
from kerasdist.training.replica import draws, replicas
from kerasdist.training.replica.dependence import Dependence
from kerasdist.training.replica.replicas import OfCustomLoop, Peer, Replica, WholeCopy

_OF_LOOP = (
    "Gradients: the loop has all-reduced them, so `optimizer.apply` takes them as they are. Keras "
    "alone would add up those of all replicas once more; leave out a division that makes up for it."
)


def apply(
    original: Callable, optimizer: Any, gradients: Iterable, trainable_variables: Any = None
) -> Any:
    """Stands before `optimizer.apply`: sums the replicas' gradients, then applies the sum.

    Raises:
        RuntimeError: A loop of the user's own calls it outside of the scope of the optimizer or of
            the weights; or, with several replicas, outside of `strategy.run`.
    """
    replica = replicas.current()
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    if not isinstance(replica, replicas.OF_STEP):
        variables = trainable_variables or keras_optimizers.variables_trained_by(optimizer)
        scope_checks.check_loop_scope(optimizer, variables)
    if replica is None:
        return _apply_outside_steps(original, optimizer, gradients, trainable_variables)
    if replica.updates.deferred is not None:
        replica.updates.deferred.append((optimizer, list(gradients), trainable_variables))
        return None
    replica.updates.graphs.append(tf.compat.v1.get_default_graph())
    gradients = list(gradients)
    if not gradients:  # As for Keras, this is no update, and does not build the optimizer.
        return original(optimizer, gradients, trainable_variables)
    called_optimizers.note(optimizer)
    if replica.trial is not None:
        return _note_update(optimizer, gradients, trainable_variables, replica)
    _make_ready(optimizer, trainable_variables, replica)
    variables = list(trainable_variables or keras_optimizers.variables_trained_by(optimizer))
    return _apply_in_step(original, optimizer, gradients, variables, replica)


def _make_ready(optimizer: Any, variables: list | None, replica: Replica) -> None:
    """Builds an optimizer in the scope of the strategy."""
    if isinstance(replica, OfCustomLoop) and not strategy_adapter.is_adapted(
        scopes.strategy_of(optimizer)
    ):
        with tf.init_scope():
            keras_optimizers.adopt(optimizer, tf.distribute.get_strategy())
    if not optimizer.built:
        # For the variables themselves, not for what stands in for them in the step.
        with _local_updates(replica, False), tf.init_scope(), replica.delivery.updating(optimizer):
            keras_optimizers.build(optimizer, list(variables or []))


def _apply_in_step(
    original: Callable, optimizer: Any, gradients: list, variables: list, replica: Replica
) -> Any:
    delivery = replica.delivery
    if replica.updates.are_in_custom_apply:
        gradients = _aggregate_anew(variables, gradients, replica)
        update = functools.partial(delivery.apply, original, optimizer, gradients, variables)
        return delivery.carry_out(update)
    if replica.updates.are_local:
        return _update(original, optimizer, gradients, variables, replica)
    # Those of a LossScaleOptimizer may be infinite: it judges them itself.
    own = [] if _scales(optimizer) else list(map(replica.whole_gradients.own, gradients))
    for callback in update_callback.of_step(replica.options.callbacks):
        replica.extra_sums.update(callback.extra_sums(own))
    gradients = _aggregate_of(variables, gradients, replica, _division_of(optimizer, replica))
    rest = functools.partial(_apply_sum, original, optimizer, variables)
    return delivery.hand_over(rest, gradients, variables, replica)


def _apply_sum(
    original: Callable, optimizer: Any, variables: list, gradients: list, replica: Replica
) -> Any:
    """Does all that follows the sum: the second half of `apply`, which another task may trace.

    Args:
        original: Of `apply`, as the two after it.
        optimizer: As there.
        variables: As there.
        gradients: Of the global batch.
        replica: The `current()` one, which knows what came of `extra_sums`.
    """
    draws_seen = draws.looked_for_in_update(optimizer, replica)
    with _local_updates(replica), draws_seen, replica.delivery.updating(optimizer):
        return _update(original, optimizer, gradients, variables, replica)


def _note_update(optimizer: Any, gradients: list, variables: list | None, replica: Replica) -> None:
    """Notes in a trial what an update would be made of."""
    variables = variables or keras_optimizers.variables_trained_by(optimizer)
    pairs = [
        (getattr(variable, "path", variable.name), gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
        if not is_overwritten(variable)
    ]
    keep_update(
        [path for path, _ in pairs],
        [gradient for _, gradient in pairs],
        replica,
        factor=_division_of(optimizer, replica),
    )


def _apply_outside_steps(
    original: Callable, optimizer: Any, gradients: Iterable, variables: list | None
) -> Any:
    strategy = scopes.strategy_of(optimizer)
    if not strategy_adapter.is_adapted(strategy) or not tf.distribute.in_cross_replica_context():
        return original(optimizer, gradients, variables)
    scope_checks.check_on_replica("`optimizer.apply`")
    # Loops written for one device do not know of `strategy.run`.
    run = functools.partial(original, optimizer, list(gradients), variables)
    return peers.on_replicas(strategy, tf.autograph.experimental.do_not_convert(run))


def keep_update(paths: list[str], gradients: list, replica: Replica, *, factor: int = 1) -> None:
    """Keeps the gradient of the global batch in `replica.trial`, by the paths of what has it."""
    assert replica.trial is not None
    replica.trial.updates.append((paths, _aggregate_others(gradients, replica, factor)))


def aggregate(gradients: list, replica: Replica, factor: int = 1) -> list:
    """Returns the gradient of the global batch, the same on every replica.

    Args:
        gradients: Tensors, IndexedSlices or None (which stay None), of this replica's mean loss; of
            `share` times that loss where `replica.weighs_loss`.
        replica: The one that has computed them.
        factor: What their loss was divided by; of no meaning where `replica.weighs_loss`.
    """
    if not isinstance(replica, Peer):
        replica.sums.update(replica.extra_sums)
        return gradients
    present = [gradient for gradient in gradients if gradient is not None]
    has_extra_sums = bool(set(replica.extra_sums) - set(replica.sums))
    if not present and not has_extra_sums:
        return gradients
    if not isinstance(replica, WholeCopy):
        return _summed(gradients, replica, factor)
    if not replica.is_in_step_graph() and not has_extra_sums:
        return gradients  # All replicas have the same.
    return _first_of_all(gradients, present, replica, factor)


def _first_of_all(gradients: list, present: list, replica: WholeCopy, factor: int) -> list:
    """Returns the first replica's gradients, which are those of the global batch."""
    are_dense = not any(isinstance(each, tf.IndexedSlices) for each in present)
    if not are_dense or not collectives.is_recorded():
        return _summed(gradients, replica, factor)
    with collectives.without_gradient():
        summed = _summed(gradients, replica, factor)
    # The first replica alone has been summed; what the others compute from it is the same, with a
    # gradient of their own.
    collectives.give_gradient(
        [each for each in summed if each is not None],
        present,
        lambda *upstream: [each * tf.cast(factor, each.dtype) for each in upstream],
        name="GradientOfFirstReplica",
    )
    return summed


def _summed(gradients: list, replica: Peer, factor: int) -> list:
    present = [gradient for gradient in gradients if gradient is not None]
    parcels = [Parcel(gradient, replica.dependence) for gradient in present]
    sent = [tensor for parcel in parcels for tensor in parcel.tensors]
    if not replica.weighs_loss:
        sent = [
            map_values(tensor, lambda values: replica.weigh_gradient(values, factor))
            for tensor in sent
        ]
    extra_sums = [name for name in replica.extra_sums if name not in replica.sums]
    # Made on the replica's device: TensorFlow asks for one.
    values = [tf.identity(replica.extra_sums[name]) for name in extra_sums]
    add_up = functools.partial(_sum_over_replicas, num_gradients=len(sent))
    summed = replica.exchange(add_up, [*sent, *values])
    if replica.dependence:
        replica.dependence.end_at(summed)
    replica.sums.update(zip(extra_sums, summed[len(sent) :], strict=True))
    sums = iter(summed)
    whole = iter(
        [parcel.unpacked(itertools.islice(sums, len(parcel.tensors))) for parcel in parcels]
    )
    return [None if gradient is None else next(whole) for gradient in gradients]


def _aggregate_of(variables: list, gradients: list, replica: Replica, factor: int) -> list:
    """Returns what `aggregate` does, and the largest value where it is to overwrite the variable.

    So do the gradients of Keras' float8 layers, which are the largest inputs that they have seen.
    """
    overwrites = [is_overwritten(variable) for variable in variables]
    if not isinstance(replica, Peer) or not any(overwrites):
        return _aggregate_others(gradients, replica, factor)
    pairs = list(zip(gradients, overwrites, strict=True))
    others = [gradient for gradient, overwrites in pairs if not overwrites]
    summed = iter(_aggregate_others(others, replica, factor))
    return [_largest(gradient) if overwrites else next(summed) for gradient, overwrites in pairs]


def _aggregate_others(gradients: list, replica: Replica, factor: int) -> list:
    """Returns what `aggregate` does, and those gradients as they are that replicas have in common.

    These are what the tape has given for the global batch, and what is made of it.
    """
    are_common = [_is_common(gradient, replica) for gradient in gradients]
    others = [each for each, is_common in zip(gradients, are_common, strict=True) if not is_common]
    # Slices of the same rows on all replicas add up by their values, not one after the other.
    have_rows = list(map(replica.whole_gradients.has_rows_of, others))
    given = [
        values_of(other) if has else other for other, has in zip(others, have_rows, strict=True)
    ]
    totals = zip(others, have_rows, aggregate(given, replica, factor), strict=True)
    summed = iter(
        map_values(other, lambda _, total=total: total) if has else total
        for other, has, total in totals
    )
    pairs = zip(gradients, are_common, strict=True)
    return [gradient if is_common else next(summed) for gradient, is_common in pairs]


def _is_common(gradient: Any, replica: Replica) -> bool:
    if gradient in replica.whole_gradients:
        return True
    dependence = replica.dependence
    if not replica.whole_gradients or gradient is None or dependence is None:
        return False
    if isinstance(replica, OfCustomLoop):
        is_common = dependence.is_common_by_now(gradient) and _is_made_of_whole(gradient, replica)
        if is_common and peers.is_chief(tf.distribute.get_strategy()):
            announce(_OF_LOOP)
        return is_common
    # Where replicas can meet, a variable may have on each what it has seen of its own examples:
    # the mean of gradients that are the same is the same again.
    return dependence.is_common(gradient, may_read=not replica.is_in_step_graph())


def _is_made_of_whole(gradient: Any, replica: Replica) -> bool:
    """Whether a gradient is computed from what a loop has all-reduced; True where no graph says."""
    return tf.executing_eagerly() or Dependence(replica.whole_gradients.tensors()).is_in(gradient)


def _aggregate_anew(variables: list, gradients: list, replica: Replica) -> list:
    """Returns gradients that an own `apply` has made of those of the global batch.

    Those that it has computed anew, from the examples of this replica, meet here.
    """
    if not isinstance(replica, Peer) or tf.executing_eagerly():
        return gradients
    if not replica.dependence.is_in(gradients):
        return gradients
    with _local_updates(replica, False):  # Nobody has scaled their loss.
        return _aggregate_of(variables, gradients, replica.anew(), 1)


def is_overwritten(variable: Any) -> bool:
    """Whether a variable gets its gradient as its value, as those of Keras' float8 layers do."""
    return getattr(variable, "overwrite_with_gradient", False)


def _largest(value: Any) -> tf.Tensor:
    """Returns the largest values over the replicas: of the same shape."""
    context: Any = tf.distribute.get_replica_context()
    return tf.reduce_max(context.all_gather(value[tf.newaxis], axis=0), axis=0)


def _division_of(optimizer: Any, replica: Replica) -> int:
    """Returns what the loss of an optimizer's gradients is still divided by.

    An optimizer around another one may scale the loss with that.
    """
    optimizers = keras_optimizers.nested(optimizer)
    divided = [
        each
        for division in replica.losses.divisions
        if not division.is_undone
        for each in keras_optimizers.nested(division.optimizer)
    ]
    is_divided = any(each is one for each in divided for one in optimizers)
    return num_replicas() if is_divided else 1


def num_replicas() -> int:
    """Returns the number of replicas of the strategy of this thread."""
    return peers.num_replicas(tf.distribute.get_strategy())


def all_reduce(
    replica: Replica, original: Callable, optimizer: Any, gradients_and_variables: Iterable
) -> Any:
    """Stands before Keras' all-reduce, which comes too late: the gradients are summed already."""
    if replica.updates.are_local:
        return list(gradients_and_variables)
    return original(optimizer, gradients_and_variables)


@contextlib.contextmanager
def _local_updates(replica: Replica, are_local: bool = True) -> Generator[None]:
    updates = replica.updates
    outer, updates.are_local = updates.are_local, are_local
    try:
        yield
    finally:
        updates.are_local = outer


def _update(
    original: Callable, optimizer: Any, gradients: list, variables: list, replica: Replica
) -> Any:
    """Updates this replica's variables with the gradients of the global batch."""
    callbacks, delivery = replica.options.callbacks, replica.delivery
    if _scales(optimizer):  # It unscales the gradients for its inner one, which comes by here.
        for callback in update_callback.of_step(callbacks):
            gradients = callback.guard_scaled(gradients, optimizer)
        return original(optimizer, gradients, variables)
    if not callbacks:
        apply_all = functools.partial(delivery.apply, original, optimizer, gradients, variables)
        return delivery.carry_out(apply_all, is_divided=keras_optimizers.divides(optimizer))
    replica.updates.optimizers.append(optimizer)
    pairs = list(zip(gradients, variables, strict=True))
    # Those that overwrite are no gradients, and none of the callbacks' business.
    overwriting = [pair for pair in pairs if is_overwritten(pair[1])]
    scale = optimizer.loss_scale_factor or 1.0

    def update(pairs: list) -> None:
        if pairs:
            scaled = [(_scaled(gradient, scale), variable) for gradient, variable in pairs]
            values, updated = map(list, zip(*scaled, *overwriting, strict=True))
            delivery.apply(original, optimizer, values, updated)
        for callback in callbacks:
            callback.after_update(variables)

    unscaled = [
        (_scaled(gradient, 1 / scale), variable)
        for gradient, variable in pairs
        if not is_overwritten(variable)
    ]
    is_divided = keras_optimizers.divides(optimizer)
    _update_with_callbacks(unscaled, update, replica, is_divided=is_divided)
    return None


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _update_with_callbacks(
    pairs: list, update: Callable, replica: Replica, *, is_divided: bool
) -> None:
    """Lets the callbacks of a step see and change gradients before `update` gets them."""
    observers = update_callback.of_step(replica.options.callbacks)

    def apply(pairs: list) -> None:
        for observer in observers:
            observer.observe_update(pairs)
        replica.delivery.carry_out(functools.partial(update, pairs), is_divided=is_divided)

    for observer in observers:
        observer.observe_gradients(pairs)
    update_callback.apply_in_order(replica.options.callbacks, pairs, apply)


def _sum_over_replicas(tensors: list, *, num_gradients: int) -> list:
    """Returns tensors and IndexedSlices summed over all replicas; the first ones are gradients."""
    replica = replicas.current()
    assert isinstance(replica, Peer)
    dtype = deployment.of(tf.distribute.get_strategy()).allreduce_dtype
    # A trial compares with one device, and a sum that is differentiated has a gradient to sum, too.
    if dtype is None or replica.trial is not None or collectives.is_recorded():
        return _sum_by_dtype(tensors, replica)
    add_up = functools.partial(_sum_by_dtype, replica=replica)
    gradients, others = tensors[:num_gradients], tensors[num_gradients:]
    return narrow_sums.sum_up(add_up, gradients, others, tf.as_dtype(dtype))


def _sum_by_dtype(tensors: list, replica: Peer) -> list:
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
        sums = (replica.sum if is_differentiable else collectives.sum_over_replicas)(group)
        for index, value in zip(positions, sums, strict=True):
            summed[index] = _cast(value, given[index].dtype)
    return summed


def _sendable(tensor: Any) -> Any:
    """Returns slices of bfloat16 as float32: TensorFlow cannot gather them over several workers."""
    is_sliced = isinstance(tensor, tf.IndexedSlices)
    return _cast(tensor, tf.float32) if is_sliced and tensor.dtype == tf.bfloat16 else tensor


def _cast(tensor: Any, dtype: tf.DType) -> Any:
    if tensor.dtype == dtype:
        return tensor
    return map_values(tensor, lambda values: tf.cast(values, dtype))


def _scaled(gradient: Any, factor: Any) -> Any:
    return gradient if factor == 1.0 else map_values(gradient, lambda values: values * factor)
