"""States that the replicas assign together: those of `add_weight(aggregation="sum")`, or "mean".

TensorFlow then gives every replica the sum, or the mean, of what they assign. But `assign_add` of
Keras assigns what was there together with what is added, so that the old sum would count once for
each replica; and TensorFlow's mean is that of the replicas, where one device has that of the
examples.

A function here stands before Keras' own of the same name, which it is given as `original`.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_threads, variable_adapter
from kerasdist.training.replica import replicas


def assign(original, variable, value):
    """Stands before `assign` of a variable: a mean is one over the examples of the batch."""
    step = replicas.with_shares()
    is_alone = step is None or step.has_whole_batch or keras_threads.is_stateless()
    if is_alone or not _is_aggregated(variable, "mean") or not variable.value.dtype.is_floating:
        return original(variable, value)
    value = tf.cast(value, variable.value.dtype)
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    weight = tf.cast(step.share * num_replicas, value.dtype)
    original(variable, tf.math.multiply_no_nan(value, weight))
    return value


def adds_up(variable) -> bool:
    """Whether what is added to a variable, in the step of this thread, is added up."""
    step = replicas.current()
    is_one_device = step is None or (step.is_alone and step.trial is None)
    return not is_one_device and _is_aggregated(variable, "sum")


def add_up(variable, value) -> None:
    """Adds to a variable what all replicas add to it that have examples."""
    step: Any = replicas.current()
    counts = step.is_first if step.has_whole_batch else step.num_examples > 0
    variable_adapter.add_in_place(variable, tf.where(counts, value, tf.zeros_like(value)))


def without_aggregated(variables: Iterable) -> list:
    """Returns those of TensorFlow's variables that a replica assigns by itself."""
    together = (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)
    on_read = tf.VariableSynchronization.ON_READ
    return [
        each
        for each in variables
        if each.synchronization == on_read or each.aggregation not in together
    ]


def _is_aggregated(variable, how: str) -> bool:
    """Whether what replicas assign to a Keras variable meets at once, not where it is read."""
    is_wanted = getattr(variable, "aggregation", None) == how
    return is_wanted and variable.synchronization != "on_read"
