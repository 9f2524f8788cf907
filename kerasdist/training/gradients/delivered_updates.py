"""Bring what Keras changes beside its gradients to the variables by the same way.

An optimizer also clips, counts, averages and decays weights; metrics add to their states. Where
workers keep their own pace, each of these reaches variables that others change, too.

A function here stands before Keras' own of the same task, which it is given as `original`.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import keras_optimizers, keras_threads, variable_adapter
from kerasdist.training.context import peers, traits
from kerasdist.training.gradients import aggregated_states
from kerasdist.training.replica import graph_facts, replicas
from kerasdist.training.replica.replicas import Replica


def clip(replica: Replica, original: Callable, optimizer: Any, gradients: list) -> list:
    """Stands before an optimizer's clipping of its gradients."""
    return replica.delivery.clip(original, optimizer, gradients)


def assign_number(
    replica: Replica, original: Callable, optimizer: Any, variable: Any, value: Any
) -> Any:
    """Stands before an optimizer's assignment to a number that it has, such as its iterations."""
    return replica.delivery.assign_number(original, optimizer, variable, value)


def average(replica: Replica, original: Callable, optimizer: Any, variables: list) -> Any:
    """Stands before an optimizer's moving average of its weights."""
    delivery = _delivery_to_others(replica)
    if delivery is None or not optimizer.use_ema:
        return original(optimizer, variables)
    return delivery.change(functools.partial(keras_optimizers.average_each, original), variables)


def decay(replica: Replica, original: Callable, optimizer: Any, variables: list) -> Any:
    """Stands before an optimizer's weight decay."""
    delivery = _delivery_to_others(replica)
    if delivery is None:
        return original(optimizer, variables)
    return delivery.change(original, variables)


def assign(original: Callable, variable: keras.Variable, value: Any) -> Any:
    """Stands before `assign` of a variable.

    Raises:
        RuntimeError: In a loop of the user's own, several workers compute the state of a metric
            from what it was, and not by adding to it.
    """
    is_number = not isinstance(value, tf.Tensor)  # It is not computed.
    if is_number or keras_threads.is_stateless() or not _is_of_several_workers(variable):
        return aggregated_states.assign(original, variable, value)
    added = graph_facts.addend_of(variable.value, value)
    if added is not None:
        variable_adapter.add_in_place(variable, tf.broadcast_to(added, variable.shape))
        return value
    if _is_of_metric(variable) and graph_facts.is_read_for(variable.value, value):
        _check_one_worker(variable)
    return original(variable, value)


def _is_of_metric(variable: keras.Variable) -> bool:
    return variable.aggregation == "sum" and variable.synchronization == "on_read"


def _check_one_worker(variable: keras.Variable) -> None:
    number = peers.num_workers(tf.distribute.get_strategy())
    if number > 1:
        raise RuntimeError(
            f"The state '{variable.path}' of a metric is computed from what it was, and {number} "
            "workers that do so at the same time lose counts. Add to it, as in "
            "`state.assign_add(count)`, or let the step return the value, and compute the state on "
            "the chief."
        )


def assign_add(original: Callable, variable: keras.Variable, value: Any) -> Any:
    """Stands before `assign_add` of a variable."""
    if keras_threads.is_stateless():
        return original(variable, value)
    replica = replicas.current()
    delivery = None if replica is None else _delivery_to_others(replica)
    if delivery is not None:
        return delivery.add_in_place(variable, value)
    if _is_of_several_workers(variable):
        return variable_adapter.add_in_place(variable, value)
    return aggregated_states.add(original, variable, value)


def _is_of_several_workers(variable: keras.Variable) -> bool:
    """Whether a loop that is not ours adds to what other workers may add to meanwhile.

    Keras reads a variable and assigns the sum, which takes back what came between.
    """
    is_step = not tf.executing_eagerly() and traits.has_remote_variables(
        tf.distribute.get_strategy()
    )
    is_step = is_step and replicas.current() is None
    return is_step and isinstance(variable.value, tf.Variable)


def _delivery_to_others(replica: Replica) -> Any:
    """Returns how a step reaches variables that other workers change, too; None elsewhere."""
    return replica.delivery if traits.has_remote_variables(tf.distribute.get_strategy()) else None
