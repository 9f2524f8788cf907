"""Batch normalization over replicas.

With `synchronized=True` Keras computes the statistics of the global batch, which is what one device
computes. Without it each replica normalizes with its own examples. Its moving statistics then drift
apart, and stock Keras saves those of the first replica. Here they are variables that hold one value
per replica and read as the mean over the replicas, as in tf.keras 2: the moving average is linear,
so the mean of the replicas' averages is the average of the replicas' means. Over several workers
the mean is taken at the end of each epoch and before `evaluate`, when all of them are there.
"""

import contextlib
import warnings
from collections.abc import Generator

import keras
import tensorflow as tf

from kerasdist.training import keras_adapter, replica_step, workers


def moments(stock, layer, inputs, mask):
    """Returns Keras' (mean, variance) of the batch; the moving ones on a replica without examples.

    The mean over no example is NaN, and would stay in the moving statistics for ever.
    """
    mean, variance = stock(layer, inputs, mask)
    step = replica_step.current()
    if step is None or not step.may_be_empty or step.is_only_replica or layer.synchronized:
        return mean, variance
    has_examples = step.num_examples > 0
    moving_mean = tf.cast(layer.moving_mean, mean.dtype)
    moving_variance = tf.cast(layer.moving_variance, variance.dtype)
    return (
        tf.where(has_examples, mean, tf.reshape(moving_mean, tf.shape(mean))),
        tf.where(has_examples, variance, tf.reshape(moving_variance, tf.shape(variance))),
    )


@contextlib.contextmanager
def frozen(model) -> Generator[None]:
    """Traces steps that leave the moving statistics as they are, with momentum 1."""
    layers = keras_adapter.batch_normalizations_of(model)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 1.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def unsynchronized_layers(model) -> list[keras.layers.BatchNormalization]:
    """Returns the layers of `model` that normalize each replica with its own examples."""
    layers = keras_adapter.batch_normalizations_of(model)
    return [layer for layer in layers if not layer.synchronized]


def synchronize(model) -> None:
    """Gives every replica of this machine the mean of the moving statistics.

    Called before `evaluate` and `predict`, whose replicas read their own copy.
    """
    for variable in _statistics(model):
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            variable.assign(variable.read_value())


def synchronize_workers(model, averages=()) -> None:
    """Gives every replica of every worker the mean of the moving statistics.

    Args:
        model: A model that all workers train.
        averages: Further variables that hold one value per replica.
    """
    strategy = model.distribute_strategy
    variables = [*_statistics(model), *averages]
    if workers.count(strategy) > 1 and variables:
        workers.assign_mean(strategy, variables)


def _statistics(model) -> list[tf.Variable]:
    layers = unsynchronized_layers(model)
    return [variable.value for layer in layers for variable in layer.non_trainable_variables]


def notes(model, num_replicas: int) -> tuple[str, ...]:
    """Returns what a person must know of the statistics before training; mostly nothing."""
    layers = [layer.name for layer in unsynchronized_layers(model) if layer.trainable]
    if num_replicas == 1 or not layers:
        return ()
    names = ", ".join(layers[:3]) + (", ..." if len(layers) > 3 else "")
    return (
        f"Batch normalization ({names}) uses the statistics of each of {num_replicas} replicas, "
        "so training differs from one device. BatchNormalization(synchronized=True) uses those of "
        "the global batch.",
    )


def warn_if_unsynchronized(model, num_replicas: int) -> None:
    """Warns with the `notes`, when a step function is made."""
    for note in notes(model, num_replicas):
        warnings.warn(note, stacklevel=2)
