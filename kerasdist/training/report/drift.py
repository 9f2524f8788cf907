"""Finds replicas that have drifted apart: with other weights, states or learning rates.

All replicas get the same updates, so only the user's program can make them differ: weights that one
worker alone loads before `fit`, what a callback does on one worker alone, and what a step assigns
by itself, to weights or to a state.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_optimizers
from kerasdist.support.text import short_list
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.replica import custom_attributes
from kerasdist.training.trial import assignments, tolerances

_MOST_SHOWN = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Numbers:
    """Numbers that differ if the replicas of a training do.

    Attributes:
        weights: Names of the trained weights.
        states: Names of what else the model keeps.
        rows: For each replica of this worker: the norms of these, and the learning rates.
    """

    weights: list[str]
    states: list[str]
    rows: np.ndarray


def check_begin(model: keras.Model) -> None:
    """Checks that all workers begin `fit` with the same weights; all of them must call it.

    Raises:
        ValueError: On every worker, where they do not; names the weights.
    """
    numbers, different = _compared(model)
    if weights := [f"'{each}'" for each in different if each in numbers.weights]:
        raise ValueError(
            f"The workers begin `fit` with different weights: {short_list(weights, _MOST_SHOWN)}. "
            "What sets weights must do the same on all workers: let each of them load the same "
            "file, from a folder that all of them see."
        )


def warn_of_drift(model: keras.Model, epoch: int | None = None) -> bool:
    """Warns if the replicas' weights, states or learning rates differ; all workers must call it.

    Args:
        model: The model that is trained.
        epoch: The epoch that is over, from 0; None at the end of `fit`.

    Returns:
        Whether they differ, and it is news.
    """
    strategy = model.distribute_strategy
    numbers, different = _compared(model)
    states = [each for each in different if each in numbers.states]
    weights = [each for each in different if each in numbers.weights]
    is_of_workers = peers.count(strategy) > 1 or strategy.num_replicas_in_sync == 1
    if is_of_workers and len(states) < len(different):
        texts = [_describe(different, epoch)]
    else:  # Only a step can make them differ, or does most of the time.
        num_replicas = strategy.num_replicas_in_sync
        texts = assignments.describe_news(model, weights, states, num_replicas)
    for text in texts:
        warn(text)
    # Workers may not have been told the same, and must agree.
    return bool(different if is_of_workers else texts)


def _describe(names: list, epoch: int | None) -> str:
    names = ["the learning rate" if name is None else f"'{name}'" for name in names]
    told = short_list(names, _MOST_SHOWN)
    when = "at the end of `fit`" if epoch is None else f"after epoch {epoch + 1}"
    return (
        f"The workers have drifted apart: {when} they differ in {told}. Whatever "
        "changes weights or the learning rate, such as a callback, must do the same on all "
        "workers: decide by the logs of `on_epoch_end`, which are those of all workers (the logs "
        "of `on_train_batch_end` are of one worker), not by the clock, and draw random numbers "
        "from one seed."
    )


def _compared(model: keras.Model) -> tuple[_Numbers, list]:
    """Returns what is compared over all replicas, and what differs: names, None for a rate."""
    numbers = _numbers_of(model)
    size = numbers.rows.shape[1]
    rows = peers.gather(model.distribute_strategy, numbers.rows.ravel()).reshape([-1, size])
    names = [*numbers.weights, *numbers.states]
    names = [*names, *[None] * (size - len(names))]  # The learning rates.
    return numbers, list(dict.fromkeys(np.array(names, object)[_are_apart(rows)]))


def _are_apart(rows: np.ndarray) -> np.ndarray:
    """Returns which columns are not the same in all rows: bools [size]."""
    is_finite = np.isfinite(rows)
    rows = np.where(is_finite, rows, 0.0)
    scales = np.maximum(np.abs(rows).max(axis=0), tolerances.DRIFT_NEAR_ZERO)
    apart = np.ptp(rows, axis=0) / scales > tolerances.DRIFT
    return apart | (is_finite.any(axis=0) & ~is_finite.all(axis=0))


def _numbers_of(model: keras.Model) -> _Numbers:
    strategy = model.distribute_strategy
    states = custom_attributes.states_of(model)
    if not peers.are_alike(strategy, str([name for name, _ in states])):
        states = []  # A worker may keep something for itself.
    weights = [(each.path, each.value) for each in model.trainable_variables]
    norms = _norms([value for _, value in (*weights, *states)], strategy)
    rates = [
        float(each.learning_rate)
        for each in keras_optimizers.updating_of(model)
        if hasattr(each, "learning_rate")
    ]
    return _Numbers(
        weights=[name for name, _ in weights],
        states=[name for name, _ in states],
        rows=np.concatenate([norms, np.tile(rates, (len(norms), 1))], axis=1),
    )


def _norms(variables: list, strategy: tf.distribute.Strategy) -> np.ndarray:
    """Returns the norms of variables: float64 [replicas of this worker, variables]."""
    num_local = len(peers.local_replicas(strategy))
    # Sums of squares make no copy of a weight, and are read at once.
    sums = [
        tf.cast(tf.nn.l2_loss(_floats(tf.convert_to_tensor(copy))), tf.float64)
        for variable in variables
        for copy in _copies(variable, strategy, num_local)
    ]
    if not sums:
        return np.zeros([num_local, 0])
    return np.sqrt(2 * tf.stack(sums).numpy()).reshape([-1, num_local]).T


def _copies(variable: Any, strategy: tf.distribute.Strategy, num_local: int) -> tuple:
    copies = strategy.experimental_local_results(variable)
    return copies if len(copies) == num_local else copies[:1] * num_local  # All of them share one.


def _floats(value: tf.Tensor) -> tf.Tensor:
    is_wide = value.dtype.is_floating and value.dtype.size >= 4
    return value if is_wide else tf.cast(value, tf.float32)
