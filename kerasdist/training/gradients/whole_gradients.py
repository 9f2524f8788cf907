"""The gradient of the global batch, in a train_step of the user's own: `tape.gradient` returns it.

A program that clips a gradient by its norm, projects one on another, climbs along it, keeps it for
a later step or logs its size means that of the whole batch, and none of this is linear: what the
replicas make of their own gradients does not add up to it, in the first step or only in a later
one. So the replicas' gradients by variables meet where the tape gives them, and an optimizer that
is given what they make of them finds nothing left to sum. It may then stand inside of a `tf.cond`.

Where the replicas cannot meet, as inside of a condition or a loop, a gradient stays that of one
replica until it comes to the optimizer.
"""

import keras
import tensorflow as tf

from kerasdist.private import traced_graphs
from kerasdist.training.gradients import gradient_aggregation
from kerasdist.training.replica import replicas


def of_batch(found, target, sources):
    """Returns the gradients that a tape has found, of the global batch where they can be.

    Args:
        found: Gradients by `sources`: tensors, IndexedSlices or None.
        target: What they are the gradient of, on this replica: a mean over its examples.
        sources: Variables and tensors. Those by tensors stay as they are, those of its examples.
    """
    step = replicas.current()
    if step is not None and step.is_alone and step.trial is not None:
        _remember(tf.nest.flatten(found), step)
    if step is None or step.is_alone or step.weighs_loss or not _can_meet(step):
        return found
    division = next((each for each in step.losses.divisions if each.loss is target), None)
    if division is None and step.losses.divisions:  # Maybe of a part of it.
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
    for position, gradient in zip(
        positions, gradient_aggregation.aggregate(given, step, factor), strict=True
    ):
        step.whole_gradients.add(gradient, own[position])
        gradients[position] = gradient
    if division:
        division.is_undone = True
    return tf.nest.pack_sequence_as(sources, gradients)


def _remember(gradients: list, step: replicas.Replica) -> None:
    """Lets a rehearsal find what is done with the gradients of a whole batch."""
    for gradient in gradients:
        if gradient is not None:
            step.whole_gradients.add(gradient, gradient)


def _can_meet(step: replicas.Replica) -> bool:
    """Whether this is the graph of the step itself, and no loop body that will be vectorized."""
    is_step = tf.compat.v1.get_default_graph() is step.graph
    return is_step and not traced_graphs.is_being_vectorized()


def _is_variable_to_learn(source) -> bool:
    is_variable = isinstance(source, tf.Variable | keras.Variable)
    return is_variable and not gradient_aggregation.is_overwritten(source)
