"""Compute the statistics of batch normalization over replicas.

With `synchronized=True` Keras computes the statistics of the global batch, which is what one device
computes. Without it each replica normalizes with its own examples. Its moving statistics then drift
apart, and Keras alone saves those of the first replica. Here they are variables that hold one value
per replica and read as the mean over the replicas, as in tf.keras 2: the moving average is linear,
so the mean of the replicas' averages is the average of the replicas' means. Over several workers
the mean is taken at the end of each epoch and before `evaluate`, when all of them are there.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import collectives, custom_parts, keras_layers, variable_adapter
from kerasdist.support.unique import unique
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.hooks import differing_layers
from kerasdist.training.replica.replicas import Divided, OfCustomLoop


def moments(
    replica: Divided,
    original: Callable,
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple:
    """Returns (mean, variance) of the batch as Keras does; synchronized, those of the global batch.

    Keras sends three messages for each layer, and none where there is a mask. The formulas are
    Keras' own.
    """
    if not layer.synchronized:
        found = original(layer, inputs, mask)
        is_of_custom_loop = isinstance(replica, OfCustomLoop)
        return _of_some(layer, inputs, found) if is_of_custom_loop else found
    dtype = inputs.dtype
    inputs = tf.cast(inputs, tf.float32) if dtype in (tf.float16, tf.bfloat16) else inputs
    axes = keras_layers.reduction_axes(layer)
    if mask is None:
        mean, variance = _moments(replica, inputs, axes)
    else:
        mean, variance = _masked_moments(replica, inputs, mask, axes)
    if inputs.dtype != dtype:
        mean, variance = (_in_range(value, dtype) for value in (mean, variance))
    return mean, variance


def _of_some(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, found: tuple) -> tuple:
    """Returns what was found of a replica's examples, or what the layer has seen, where none are.

    A loop of the user's own may give a replica none, and their mean is no number.
    """
    if inputs.shape[0]:
        return found
    are_some = tf.shape(inputs)[0] > 0
    seen = (layer.moving_mean, layer.moving_variance)
    return tuple(
        tf.where(are_some, value, tf.cast(before, value.dtype))
        for value, before in zip(found, seen, strict=True)
    )


def _moments(replica: Divided, inputs: tf.Tensor, axes: Sequence) -> tuple:
    """Computes the statistics of all replicas' inputs, and gives them a gradient of their own.

    That of the mean by an input x is 1 / n, that of the variance 2 (x - mean) / n. TensorFlow's own
    has three operations for each of those below: half of the time of the first step.
    """
    (channel,) = (axis for axis in range(inputs.shape.rank) if axis not in axes)
    with collectives.without_gradient():
        total, square = (tf.reduce_sum(each, axis=axes) for each in (inputs, tf.square(inputs)))
        total, square, count = replica.sum([total, square, _num_values(inputs, channel)])
        mean, mean_square = (tf.math.divide_no_nan(each, count) for each in (total, square))
        excess = mean_square - tf.square(mean)
        variance = tf.maximum(excess, 0)

    def backward(of_mean: Any, of_variance: Any) -> list:
        of_variance = tf.where(excess < 0, tf.zeros_like(of_variance), 2 * of_variance)
        gradient = tf.concat([of_mean, of_variance], axis=0)
        gradient = tf.math.divide_no_nan(replica.sum_gradient(gradient), count)
        of_mean, of_variance = tf.split(gradient, 2)
        if channel == inputs.shape.rank - 1:
            return [of_mean + of_variance * (inputs - mean)]
        shape = [-1 if axis == channel else 1 for axis in range(inputs.shape.rank)]
        of_mean, of_variance, shift = (
            tf.reshape(each, shape) for each in (of_mean, of_variance, mean)
        )
        return [of_mean + of_variance * (inputs - shift)]

    collectives.give_gradient([mean, variance], [inputs], backward, name="GlobalMoments")
    return mean, variance


def _num_values(inputs: tf.Tensor, channel: int) -> Any:
    """Returns how many values of a channel there are, in the shape (1,)."""
    number = inputs.shape.num_elements()
    if number is None:
        return tf.cast(tf.reshape(tf.size(inputs) // tf.shape(inputs)[channel], [1]), inputs.dtype)
    return tf.constant([number // inputs.shape[channel]], inputs.dtype)


def _masked_moments(replica: Divided, inputs: Any, mask: Any, axes: Sequence) -> tuple:
    weights = tf.cast(tf.broadcast_to(mask[..., tf.newaxis], tf.shape(inputs)), inputs.dtype)
    total = tf.reduce_sum(tf.math.multiply_no_nan(inputs, weights), axis=axes)
    total, weight = replica.sum([total, tf.reduce_sum(weights, axis=axes)])
    weight += keras.config.epsilon()
    mean = total / weight
    shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    distance = tf.math.multiply_no_nan(tf.square(inputs - tf.reshape(mean, shape)), weights)
    return mean, replica.total(tf.reduce_sum(distance, axis=axes)) / weight


def _in_range(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(value, tf.float16.min, tf.float16.max), dtype)


def states_of_examples(model: keras.Model) -> list[tf.Variable]:
    """Returns the variables that each replica sets by its own examples: metrics, statistics."""
    # A compiled metric is one of others, which have the same variables.
    is_of_all = variable_adapter.reads_first_replica
    values = [value for value in _of_metrics(model) if not is_of_all(value)]
    return unique([*values, *_statistics(model)])


def other_states(model: keras.Model) -> list[tf.Variable]:
    """Returns the other variables that a step of `model` sets and its optimizer does not.

    Statistics of synchronized layers, states of layers of the user's own, what a program assigns,
    and the metrics that see the whole batch.
    """
    known = {id(value) for value in states_of_examples(model)}
    values = (*(each.value for each in model.non_trainable_weights), *_of_metrics(model))
    states = {id(value): value for value in values}
    return [value for key, value in states.items() if key not in known]


def _of_metrics(model: keras.Model) -> list[tf.Variable]:
    metrics = custom_parts.metrics_of(model)
    return [each.value for metric in metrics for each in metric.variables]


@contextlib.contextmanager
def synchronized(model: keras.Model) -> Generator[None]:
    """Traces steps whose statistics are those of the global batch, in all layers."""
    layers = differing_layers.unsynchronized(model)
    for layer in layers:
        layer.synchronized = True
    try:
        yield
    finally:
        for layer in layers:
            layer.synchronized = False


def synchronize(model: keras.Model) -> None:
    """Gives every replica of this machine the mean of the moving statistics.

    Called before `evaluate` and `predict`, whose replicas read their own copy.
    """
    for variable in _statistics(model):
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            variable.assign(variable.read_value())


def synchronize_workers(model: keras.Model, averages: Any = ()) -> None:
    """Gives every replica of every worker the mean of the moving statistics.

    Args:
        model: A model that all workers train.
        averages: Further variables that hold one value per replica.
    """
    strategy = model.distribute_strategy
    variables = [*_statistics(model), *averages]
    if peers.count(strategy) > 1 and variables:
        peers.assign_mean(strategy, variables)


def _statistics(model: keras.Model) -> list[tf.Variable]:
    layers = differing_layers.unsynchronized(model)
    return [variable.value for layer in layers for variable in layer.non_trainable_variables]


def warn_if_unsynchronized(model: keras.Model, num_replicas: int) -> None:
    """Warns with the notes, when a step function is made."""
    for note in differing_layers.notes_of_statistics(model, num_replicas):
        warn(note)
