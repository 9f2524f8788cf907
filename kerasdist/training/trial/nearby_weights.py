"""Weights that are moved a little, which tells what a step computes from what rounding makes of it.

With other weights nearby, rounding gives another number each time, and what is computed nearly the
same one.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from kerasdist.training.context import peers
from kerasdist.training.trial import tolerances


def move(model, fraction: float, seed: int = 0) -> None:
    """Moves this replica's copies of the trained weights; called in replica context, eagerly.

    Args:
        model: A model of one of our strategies.
        fraction: Of each number, how far it is moved at most, along each axis.
        seed: Says which of them are moved how far.
    """
    strategy = model.distribute_strategy
    position = peers.replica_id() - peers.local_replicas(strategy)[0]
    for variable in model.trainable_variables:
        own = strategy.experimental_local_results(variable.value)[position]
        own.assign(_moved(tf.convert_to_tensor(own), fraction, seed))


def step_nearby(step: Callable, model, seed: int) -> Callable:
    """Returns a step that is made with the weights nearby; what it assigns is for the caller."""

    def run(data):
        move(model, tolerances.PERTURBATION, seed)
        return step(data)

    return run


def numbers_nearby(structure, seed: int):
    """Returns tensors of numbers that are nearby, such as predictions."""
    return tf.nest.map_structure(
        lambda each: _moved(each, tolerances.PERTURBATION, seed), structure
    )


def _moved(tensor, fraction: float, seed: int):
    if tensor.dtype not in (tf.float32, tf.float64):
        return tensor
    sizes = tensor.shape.as_list()
    # A factor for each axis: one for each number would need as much memory as a large weight.
    for axis, size in enumerate(sizes or [1]):
        waves = np.cos((0.7 + seed + axis) * np.arange(1, 1 + size))
        shape = [size if each == axis else 1 for each in range(len(sizes))]
        tensor = tensor * tf.constant(1 + fraction * waves.reshape(shape), tensor.dtype)
    return tensor
