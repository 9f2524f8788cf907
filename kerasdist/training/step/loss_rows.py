"""Whether a loss is a mean over the examples, by what it makes of each of them alone.

A batch that is divided over replicas may not show it: a mean with a divisor of its own, such as the
number of tokens that count, is one where all shares happen to have as many in proportion.
"""

import numpy as np
import tensorflow as tf

from kerasdist.private import rehearsal_adapter
from kerasdist.training.data import batches

# Each costs a call of the loss, and two different ones are enough.
_MOST_EXAMPLES = 8


def is_mean(loss, labels, predictions, tolerance: float) -> bool:
    """Whether the gradient of a loss of several examples is that of each of them alone.

    Args:
        loss: A `keras.Loss`: with the reduction "sum" it may be a sum over the examples instead.
        labels: What it is called with: tensors [examples, ...], nested.
        predictions: The same.
        tolerance: How much of the norm of a gradient may be rounding.

    Returns:
        Whether they are equal. True, too, where that cannot be seen: the loss does not take one
        example, or its arguments have no row for each.
    """
    number = batches.num_examples(predictions)
    leaves = tf.nest.flatten((labels, predictions))
    if any(batches.num_examples(leaf) != number for leaf in leaves):
        return True
    number = min(number, _MOST_EXAMPLES)
    try:
        whole = _gradient(loss, labels, predictions, 0, number)
        rows = [_gradient(loss, labels, predictions, row, row + 1) for row in range(number)]
    except Exception:  # Of the user's loss, which may mean no single example.
        return True
    alone = np.concatenate(rows)
    if getattr(loss, "reduction", None) != "sum":
        alone = alone / number
    if not np.isfinite(whole).all():
        return True
    difference = np.linalg.norm(whole - alone)  # NaN for an example without anything that counts.
    return bool(difference <= tolerance * max(np.linalg.norm(whole), np.linalg.norm(alone)))


def _gradient(loss, labels, predictions, start: int, end: int) -> np.ndarray:
    """Returns the gradient of a loss of some rows, by the predictions: [rows, numbers]."""
    labels, predictions = tf.nest.map_structure(
        lambda leaf: batches.rows(leaf, start, end), (labels, predictions)
    )
    with (
        rehearsal_adapter.assignments_undone(),
        rehearsal_adapter.alike_draws() as start_draws,
        tf.GradientTape() as tape,
    ):
        start_draws()
        tape.watch(predictions)
        value = tf.reduce_mean(loss(labels, predictions))
    gradients = tape.gradient(value, tf.nest.flatten(predictions), unconnected_gradients="zero")
    arrays = [np.reshape(tf.cast(each, tf.float64), [end - start, -1]) for each in gradients]
    return np.concatenate(arrays, axis=1)
