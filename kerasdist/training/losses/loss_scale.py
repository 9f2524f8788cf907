"""Scale a loss: by what its optimizer multiplies it with, and by the share of this replica."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import tensorflow as tf

from kerasdist.support import memory
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica.notes import Division
from kerasdist.training.replica.replicas import Part, Replica

# A trial scales its loss by this at most: float16 gradients then neither overflow nor vanish.
_LARGEST_SCALE_OF_TRIAL = 2.0**10


def scale_loss(replica: Replica, original: Callable, optimizer: Any, loss: Any) -> tf.Tensor:
    """Stands before `optimizer.scale_loss`: weighs the loss by the replica's share.

    Keras' own train_step calls it right before the backward pass, where one multiplication does the
    work of one per gradient. In another step, of which only the optimizer's own gradients are known
    to come from this loss, a loss that is scaled is divided by the number of replicas meanwhile:
    what an example adds to a float16 gradient is then what it adds on one device, and becomes
    infinite with it. So it is where an update is made of several batches.
    """
    if replica.updates.are_local:
        return original(optimizer, loss)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and not optimizer.built:
        memory.of_part(optimizer).is_scaled_unbuilt = True
    if isinstance(replica, Part):
        if replica.weighs_loss:
            loss = replica.weigh(loss)
        elif _scale_of(optimizer) is not None:
            number = gradient_aggregation.num_replicas()
            return _divided_loss(replica, original, optimizer, loss, number)
    elif replica.delivery.num_batches > 1 and (
        replica.weighs_loss or _scale_of(optimizer) is not None
    ):
        return _divided_loss(replica, original, optimizer, loss, replica.delivery.num_batches)
    return _scaled_loss(replica, original, optimizer, loss)


def _divided_loss(
    replica: Replica, original: Callable, optimizer: Any, loss: Any, number: int
) -> tf.Tensor:
    """Scales a loss divided by the number of parts that the global batch has."""
    scaled = _scaled_loss(replica, original, optimizer, loss / number)
    replica.losses.divisions.append(Division(loss=scaled, optimizer=optimizer))
    return scaled


def _scaled_loss(replica: Replica, original: Callable, optimizer: Any, loss: Any) -> tf.Tensor:
    if replica.trial is None or _scale_of(optimizer) is None:
        return original(optimizer, loss)
    scale = tf.minimum(tf.cast(_scale_of(optimizer), loss.dtype), _LARGEST_SCALE_OF_TRIAL)
    return loss * scale


@contextlib.contextmanager
def scales_watched() -> Generator[list]:
    """Yields a list that gets the optimizers which are built too late for what is traced inside.

    Where a loss is scaled, a `LossScaleOptimizer` that is not built gives its first scale, as a
    number that stays in the trace.
    """
    _take_scaled_unbuilt()
    late: list = []
    try:
        yield late
    finally:
        late.extend(each for each in _take_scaled_unbuilt() if each.built)


def _take_scaled_unbuilt() -> list:
    """Returns the optimizers that have scaled a loss before they were built, once."""
    found = memory.parts_with(lambda notes: notes.is_scaled_unbuilt)
    for optimizer in found:
        memory.of_part(optimizer).is_scaled_unbuilt = False
    return found


@contextlib.contextmanager
def traced_again_if_late() -> Generator[None]:
    """Lets the `tf.function` of a loop of the user's own trace again, if a scale was known late.

    TensorFlow does so where the first trace makes a variable, as an optimizer of Keras' own does.
    """
    with scales_watched() as late:
        yield
    for optimizer in late:
        if not tf.executing_eagerly():
            memory.of_part(optimizer).made_in_trace = tf.Variable(0, trainable=False)


def _scale_of(optimizer: Any) -> Any:
    """Returns what an optimizer multiplies a loss with, or None."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.loss_scale_factor
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
