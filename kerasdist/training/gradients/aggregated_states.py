"""Assign states that replicas have together, those of `add_weight(aggregation="sum")` or "mean".

TensorFlow then gives every replica the sum, or the mean, of what they assign. But `assign_add` of
Keras assigns what was there together with what is added, so that the old sum would count once for
each replica; and TensorFlow's mean is that of the replicas, where one device has that of the
examples.

Here the first is added where it lives, and the second weighed by the examples of each replica.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_threads, variable_adapter
from kerasdist.training.replica import replicas


def assign(original: Callable, variable: keras.Variable, value: Any) -> Any:
    """Stands before `assign` of a variable: a mean is one over the examples of the batch."""
    replica = replicas.current()
    if (
        not isinstance(replica, replicas.Part)
        or keras_threads.is_stateless()
        or not _is_aggregated(variable, "mean")
        or not variable.value.dtype.is_floating
    ):
        return original(variable, value)
    replica.check_can_meet()
    value = tf.cast(value, variable.value.dtype)
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    weight = tf.cast(replica.share * num_replicas, value.dtype)
    original(variable, tf.math.multiply_no_nan(value, weight))
    return value


def add(original: Callable, variable: keras.Variable, value: Any) -> Any:
    """Stands before `assign_add` of a variable: all that replicas with examples add is added up."""
    replica = replicas.current()
    if replica is None or not replica.adds_up() or not _is_aggregated(variable, "sum"):
        return original(variable, value)
    replica.check_can_meet()
    counted = tf.where(replica.counts(), value, tf.zeros_like(value))
    variable_adapter.add_in_place(variable, counted)
    return None


def how_together(variable: keras.Variable) -> str | None:
    """Returns "mean" or "sum" where replicas have a variable together, as above; else None."""
    if _is_aggregated(variable, "mean") and variable.value.dtype.is_floating:
        return "mean"
    return "sum" if _is_aggregated(variable, "sum") else None


def without_aggregated(variables: Iterable) -> list:
    """Returns those of TensorFlow's variables that a replica assigns by itself."""
    together = (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
    on_read = tf.VariableSynchronization.ON_READ
    return [
        each
        for each in variables
        if each.synchronization == on_read or each.aggregation not in together
    ]


def _is_aggregated(variable: keras.Variable, how: str) -> bool:
    """Whether what replicas assign to a Keras variable meets at once, not where it is read."""
    is_wanted = getattr(variable, "aggregation", None) == how
    return is_wanted and variable.synchronization != "on_read"
