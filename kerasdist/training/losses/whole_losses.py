"""Compute compiled losses that are no means over the examples from all examples.

Keras' `Circle` compares examples with each other, and its `Dice` and `Tversky` divide a sum over
all of them by another one: what the replicas compute of their own examples does not add up to what
one device computes. Each replica therefore shows the others labels, predictions and weights, and
all of them compute the loss of all examples. Its gradient goes to a replica's own predictions, and
so on to the weights, where the gradients of the replicas are summed as ever.

Of custom losses that is so where a trial has shown that it gives the gradient of one
device, and a mean over the examples does not, or only by the accident of its examples.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import custom_parts
from kerasdist.support import memory
from kerasdist.support.users_line import warn
from kerasdist.training.data import batches
from kerasdist.training.losses import all_examples
from kerasdist.training.replica.notes import Divisor
from kerasdist.training.replica.replicas import Part, Replica


def sees_all(replica: Replica, compiled: Any, loss: keras.Loss, args: tuple, kwargs: dict) -> bool:
    """Whether a loss is computed from all examples, in the step of this thread.

    Args:
        replica: The one that computes it, in a step of ours.
        compiled: Keras' object for what `compile` was given.
        loss: A `keras.Loss` in it.
        args: What it is called with: labels, predictions and weights.
        kwargs: The same, by name.
    """
    given = dict(zip(("y_true", "y_pred"), args, strict=False)) | kwargs
    predictions = given.get("y_pred")
    is_custom = custom_parts.is_custom_loss(loss)
    if is_custom and replica.trial is not None:
        replica.trial.custom_losses.append((loss, given.get("y_true"), predictions))
    rank = getattr(getattr(predictions, "shape", None), "rank", None)
    is_of_all = not is_custom and custom_parts.mixes_examples(loss, rank=rank)
    if not isinstance(replica, Part):
        if is_of_all and replica.delivery.needs_divisors:
            name = f"what all examples give (loss '{loss.name}')"
            replica.losses.divisors.append(Divisor(name=name, total=None))
        return False
    if is_custom:
        return compiled is not None and memory.of_part(compiled).sees_all_examples
    return is_of_all


def compute(
    replica: Part, original: Callable, loss: keras.Loss, *args: Any, **kwargs: Any
) -> tf.Tensor:
    """Returns the loss of all examples, of which `share` times it adds up over the replicas.

    Args:
        replica: This replica.
        original: Keras' own call of a loss.
        loss: The loss.
        *args: Labels, predictions and weights of this replica's examples.
        **kwargs: The same, by name.
    """
    reason = all_examples.reason_to_stay_apart((args, kwargs), replica)
    if reason is not None:
        warn(
            f"The loss '{loss.name}' is computed {reason}, so each replica computes it from its "
            "own examples alone. It is no mean over the examples, so the weights will be other "
            "ones than on one device."
        )
        return original(loss, *args, **kwargs)
    given = (args, kwargs)
    args, kwargs = all_examples.of_all(given, replica, have_gradients=True)
    with all_examples.as_one_device(replica):
        value = keras.ops.convert_to_tensor(original(loss, *args, **kwargs))
    return value if value.shape.rank == 0 else _own_part(value, given, replica)


def _own_part(value: tf.Tensor, given: tuple, replica: Part) -> tf.Tensor:
    """Returns the numbers of this replica's examples, where a loss has one for each of all.

    All replicas take the gradient of all numbers, each its share of it: Keras adds up what the
    numbers of its own part have.
    """
    total, number = replica.global_num_examples, tf.maximum(replica.num_examples, 1)
    size = tf.shape(value)[0]
    has_rows = tf.equal(size, total)
    start = tf.minimum(all_examples.start_of(given, replica), total - number)
    start, end = tf.where(has_rows, start, 0), tf.where(has_rows, start + number, size)
    own, mean = batches.rows(value, start, end), tf.reduce_mean(value, axis=0)
    part = tf.where(
        has_rows, tf.broadcast_to(mean, tf.shape(own)), own * tf.cast(replica.share, own.dtype)
    )
    return part + tf.stop_gradient(own - part)


def may_see_all(model: keras.Model) -> bool:
    """Whether `model` is compiled with losses of the user's that see one replica's examples."""
    compiled = custom_parts.compiled_losses_of(model)
    sees_one = compiled is not None and not memory.of_part(compiled).sees_all_examples
    return sees_one and bool(custom_parts.custom_loss_names(model))
