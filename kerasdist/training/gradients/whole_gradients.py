"""Let `tape.gradient` return the gradient of the global batch in a custom train_step.

A program that clips a gradient by its norm, projects one on another, climbs along it, keeps it for
a later step or logs its size means that of the whole batch, and none of this is linear: what the
replicas make of their own gradients does not add up to it, in the first step or only in a later
one. So the replicas' gradients by variables meet where the tape gives them, and an optimizer that
is given what they make of them finds nothing left to sum. It may then stand inside of a `tf.cond`.

Where the replicas cannot meet, as inside of a condition or a loop, a gradient stays that of one
replica until it comes to the optimizer.
"""

from typing import Any

import keras
import tensorflow as tf

from kerasdist.private import traced_graphs
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica.replicas import Peer, Replica


def of_batch(replica: Replica, found: Any, target: Any, sources: Any) -> Any:
    """Returns the gradients that a tape has found, of the global batch where they can be.

    Args:
        replica: The one whose tape it is.
        found: Gradients by `sources`: tensors, IndexedSlices or None.
        target: What they are the gradient of, on this replica: a mean over its examples.
        sources: Variables and tensors. Those by tensors stay as they are, those of its examples.
    """
    if not isinstance(replica, Peer):
        _remember(tf.nest.flatten(found), replica)
        return found
    if replica.weighs_loss or not _can_meet(replica):
        return found
    division = next((each for each in replica.losses.divisions if each.loss is target), None)
    if division is None and replica.losses.divisions:  # Maybe of a part of it.
        return found
    own = tf.nest.flatten(found)
    positions = [
        position
        for position, (source, gradient) in enumerate(
            zip(tf.nest.flatten(sources), own, strict=True)
        )
        if gradient is not None and _is_variable_to_learn(source)
    ]
    if not positions:
        return found
    factor = gradient_aggregation.num_replicas() if division else 1
    given = [own[position] for position in positions]
    gradients = list(own)
    aggregated = gradient_aggregation.aggregate(given, replica, factor)
    for position, gradient in zip(positions, aggregated, strict=True):
        replica.whole_gradients.add(gradient, own[position])
        gradients[position] = gradient
    if division:
        division.is_undone = True
    return tf.nest.pack_sequence_as(sources, gradients)


def _remember(gradients: list, replica: Replica) -> None:
    """Lets a trial find what is done with the gradients of a whole batch."""
    for gradient in gradients if replica.trial is not None else ():
        if gradient is not None:
            replica.whole_gradients.add(gradient, gradient)


def _can_meet(replica: Replica) -> bool:
    """Whether this is the graph of the step itself, and no loop body that will be vectorized."""
    return replica.is_in_step_graph() and not traced_graphs.is_being_vectorized()


def _is_variable_to_learn(source: Any) -> bool:
    is_variable = isinstance(source, tf.Variable | keras.Variable)
    return is_variable and not gradient_aggregation.is_overwritten(source)
