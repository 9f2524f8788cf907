"""What the counts, losses and logs of several batches are, taken together, on one device.

Most are sums. But a loss is one number for a batch, and where it is divided by a sum of weights or
by a mask, its mean over the batches is one by these divisors. So the loss of one device, times its
examples, is no sum over the batches.
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from kerasdist.training.replica import graph_facts
from kerasdist.training.replica.replicas import Replica
from kerasdist.training.synchronous_servers.contributions import How, Value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """What a step adds to a variable.

    Attributes:
        value: What is staged.
        is_per_example: Whether that counts once for each example of the update.
    """

    value: Value
    is_per_example: bool = False


def count(variable: keras.Variable | None, added: Any, replica: Replica) -> Count:
    """Returns what a step adds to a variable, as it is staged.

    Args:
        variable: Of a metric; None for the number of examples.
        added: In the step of one batch.
        replica: The one that has computed the batch.
    """
    added = tf.cast(added, tf.float64)
    updates = [
        each
        for each in replica.losses.scalars
        if any(variable is state for state in (each.metric.total, each.metric.count))
    ]
    if not updates:
        return Count(value=Value(added, How.SUM))
    is_loss = variable is updates[0].metric.total and any(
        is_weighted_loss(each.value, replica) for each in updates
    )
    if not all(each.is_weighed for each in updates):  # It counts once for the update.
        how = How.MEAN if is_loss else How.MEAN_OF_EXAMPLES
        return Count(value=Value(added, how))
    if not is_loss:
        return Count(value=Value(added, How.SUM))
    per_example = added / tf.cast(replica.num_examples, tf.float64)
    return Count(value=Value(per_example, How.MEAN), is_per_example=True)


def number(value: Any, replica: Replica) -> Value:
    """Returns a loss or a log of a step as it is staged.

    Args:
        value: Of one batch.
        replica: The one that has computed it.
    """
    how = How.MEAN if is_weighted_loss(value, replica) else How.MEAN_OF_EXAMPLES
    return Value(tf.cast(value, tf.float64), how)


def is_weighted_loss(value: Any, replica: Replica) -> bool:
    """Whether a value that is traced is computed with a loss that weights or a mask divide."""
    losses = [each.loss for each in replica.losses.divisors if each.weights is not None]
    if not losses or not tf.is_tensor(value):
        return False
    keys = set(map(graph_facts.key_of, losses))
    return any(graph_facts.key_of(tensor) in keys for tensor in graph_facts.upstream([value]))
