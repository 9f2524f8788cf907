"""Compiled losses in a trial: whether each is a mean over the examples, and what if not.

A batch that is divided over replicas may not show it: a mean with a divisor of its own, such as the
number of tokens that count, is one where all shares happen to have as many in proportion. Nor may a
few examples: the mean of the 32 largest losses is one of all, until there are more. So a loss is
also compared with what it makes of each example alone, and it is given as many as a batch has,
copies of the few with predictions that are perturbed.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts, trial_adapter
from kerasdist.support import memory
from kerasdist.support.terminal import announce
from kerasdist.training.context import peers
from kerasdist.training.data import batches
from kerasdist.training.hooks.train_function import TrainFunction
from kerasdist.training.trial import examples, tolerances, words

# Each costs a call of the loss, and two different ones are enough.
_MOST_EXAMPLES = 8
# Labels and predictions together have at most so many.
_MOST_NUMBERS = 2**24


@contextlib.contextmanager
def seeing_all(model: keras.Model) -> Generator[Callable[[], None]]:
    """Lets the user's compiled losses see all examples inside.

    Args:
        model: A compiled model.

    Yields:
        A function that lets them do so afterwards, too.
    """
    compiled = custom_parts.compiled_losses_of(model)
    with contextlib.ExitStack() as stack:
        notes = memory.of_part(compiled)
        notes.sees_all_examples = True
        stack.callback(setattr, notes, "sees_all_examples", False)

        def keep() -> None:
            stack.pop_all()
            for function in (model.train_function, model.test_function):
                if isinstance(function, TrainFunction):
                    function.trace_again()
            if peers.is_chief(model.distribute_strategy):
                announce(words.of_losses(model))

        yield keep


def are_means(called: list[tuple], tolerance: float, batch: Any) -> bool:
    """Whether the user's compiled losses are means over the examples.

    Args:
        called: The losses, each with labels and predictions of some examples.
        tolerance: How much of the norm of a gradient may be rounding.
        batch: The batch, which may have more examples.
    """
    number = batches.num_examples(batch)
    return all(is_mean(*each, tolerance, number) for each in called)


def is_mean(
    loss: Callable, labels: Any, predictions: Any, tolerance: float, num_examples: int
) -> bool:
    """Whether the gradient of a loss of several examples is that of each of them alone.

    Args:
        loss: A `keras.Loss`: with the reduction "sum" it may be a sum over the examples instead.
        labels: What it is called with: tensors [examples, ...], nested.
        predictions: The same.
        tolerance: How much of the norm of a gradient may be rounding.
        num_examples: Of a batch, which may have more of them.

    Returns:
        Whether they are equal. True, too, where that cannot be seen: the loss does not take one
        example, or its arguments have no row for each.
    """
    number = batches.num_examples(predictions)
    leaves = tf.nest.flatten((labels, predictions))
    if any(batches.num_examples(leaf) != number for leaf in leaves):
        return True
    few = min(number, _MOST_EXAMPLES)
    if not _is_mean_of_parts(loss, labels, predictions, range(few + 1), tolerance):
        return False
    if not all(isinstance(leaf, tf.Tensor) for leaf in leaves):  # Ragged or sparse.
        return True
    many = min(num_examples, _MOST_NUMBERS * number // sum(map(int, map(tf.size, leaves))))
    if many <= few:
        return True
    labels, predictions = _copies(labels, predictions, number, many)
    return _is_mean_of_parts(loss, labels, predictions, (0, many // 2, many), tolerance)


def _copies(labels: Any, predictions: Any, number: int, many: int) -> tuple[Any, Any]:
    """Returns rows once more, until there are many, with perturbed predictions."""
    positions = tf.range(many) % number
    labels, predictions = tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, positions), (labels, predictions)
    )
    return labels, examples.perturbed(predictions, seed=0)


def _is_mean_of_parts(
    loss: Callable, labels: Any, predictions: Any, ends: Sequence[int], tolerance: float
) -> bool:
    """Whether the gradient of the rows up to the last of `ends` is that of the parts between."""
    ranges = list(itertools.pairwise(ends))
    try:
        whole = _gradient(loss, labels, predictions, 0, ends[-1])
        parts = [_gradient(loss, labels, predictions, *each) for each in ranges]
    except Exception:  # The user's loss may fail with a single example.  # noqa: BLE001
        return True
    if getattr(loss, "reduction", None) != "sum":
        parts = [part * len(part) / len(whole) for part in parts]
    alone = np.concatenate(parts)
    if not np.isfinite(whole).all():
        return True
    # NaN for an example without anything that counts.
    difference = float(np.linalg.norm(whole - alone))
    scale = max(map(float, map(np.linalg.norm, (whole, alone))))
    return tolerances.is_rounding(difference, tolerance, scale=scale)


def _gradient(loss: Callable, labels: Any, predictions: Any, start: int, end: int) -> np.ndarray:
    """Returns the gradient of a loss of some rows, by the predictions: [rows, numbers]."""
    labels, predictions = tf.nest.map_structure(
        lambda leaf: batches.rows(leaf, start, end), (labels, predictions)
    )
    with (
        trial_adapter.assignments_undone(),
        trial_adapter.alike_draws() as start_draws,
        tf.GradientTape() as tape,
    ):
        start_draws()
        tape.watch(predictions)
        value = tf.reduce_mean(loss(labels, predictions))
    gradients = tape.gradient(value, tf.nest.flatten(predictions), unconnected_gradients="zero")
    arrays = [np.reshape(tf.cast(each, tf.float64), [end - start, -1]) for each in gradients]
    return np.concatenate(arrays, axis=1)
