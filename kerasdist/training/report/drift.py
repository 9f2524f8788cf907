"""Workers that have drifted apart: whether they still train the same weights, at the same rate.

All workers get the same updates, so only their own programs can make them differ.
"""

import contextlib
import warnings

import numpy as np
import tensorflow as tf

from kerasdist.training import peers

_MOST_SHOWN = 4
# Of a number: far above what machines of other kinds may round.
_DRIFT = 1e-4
_NEGLIGIBLE = 1e-6


def warn_of_drift(model, epoch: int) -> bool:
    """Warns where the workers' weights or learning rates differ; all workers must call it.

    Args:
        model: That is trained.
        epoch: The one that is over, from 0.

    Returns:
        Whether they differ.
    """
    strategy = model.distribute_strategy
    numbers = _numbers(model)
    rows = peers.gather(strategy, np.array(list(numbers.values())))
    scales = np.maximum(np.abs(rows).max(axis=0), _NEGLIGIBLE)
    apart = np.nan_to_num(np.ptp(rows, axis=0) / scales) > _DRIFT
    if not apart.any():
        return False
    names = [name for name, is_apart in zip(numbers, apart, strict=True) if is_apart]
    told = f"{', '.join(names[:_MOST_SHOWN])}{', ...' if len(names) > _MOST_SHOWN else ''}"
    warnings.warn(
        f"The workers have drifted apart: after epoch {epoch + 1} they differ in {told}. Whatever "
        "changes weights or the learning rate, such as a callback, must do the same on all "
        "workers: decide by the logs of `on_epoch_end`, which are those of all workers (those of "
        "`on_train_batch_end` are of one), not by the clock, and draw random numbers from one "
        "seed.",
        stacklevel=2,
    )
    return True


def _numbers(model) -> dict[str, float]:
    """Returns numbers that differ where the state of the training does, by its name."""
    numbers = {
        f"'{variable.path}'": float(tf.norm(tf.cast(variable.value, tf.float32)))
        for variable in model.trainable_variables
    }
    with contextlib.suppress(Exception):  # An optimizer of the user's own need not have a rate.
        numbers["the learning rate"] = float(model.optimizer.learning_rate)
    return numbers
