"""Workers that have drifted apart: whether they still train the same weights, at the same rate.

All workers get the same updates, so only their own programs can make them differ.
"""

import warnings

import numpy as np
import tensorflow as tf

from kerasdist.private import keras_optimizers
from kerasdist.training import peers
from kerasdist.training.step import own_attributes

_MOST_SHOWN = 4
# Relative: far above the rounding differences between kinds of machines.
_DRIFT = 1e-4
_NEGLIGIBLE = 1e-6


def warn_of_drift(model, epoch: int | None = None) -> bool:
    """Warns if the workers' weights or learning rates differ; all workers must call it.

    Args:
        model: The model that is trained.
        epoch: The epoch that is over, from 0; None at the end of `fit`.

    Returns:
        Whether they differ.
    """
    strategy = model.distribute_strategy
    states = own_attributes.states_of(model)
    if not peers.are_alike(strategy, str([name for name, _ in states])):
        states = []  # One may keep something for itself.
    numbers = _numbers(model, states)
    rows = peers.gather(strategy, np.array([number for _, number in numbers]))
    is_finite = np.isfinite(rows)
    rows = np.where(is_finite, rows, 0.0)
    scales = np.maximum(np.abs(rows).max(axis=0), _NEGLIGIBLE)
    apart = np.ptp(rows, axis=0) / scales > _DRIFT
    apart |= is_finite.any(axis=0) & ~is_finite.all(axis=0)
    if not apart.any():
        return False
    names = [name for (name, _), is_apart in zip(numbers, apart, strict=True) if is_apart]
    different = list(dict.fromkeys(names))
    told = ", ".join([*different[:_MOST_SHOWN], *(["..."] if different[_MOST_SHOWN:] else [])])
    when = "at the end of `fit`" if epoch is None else f"after epoch {epoch + 1}"
    warnings.warn(
        f"The workers have drifted apart: {when} they differ in {told}. Whatever "
        "changes weights or the learning rate, such as a callback, must do the same on all "
        "workers: decide by the logs of `on_epoch_end`, which are those of all workers (the logs "
        "of `on_train_batch_end` are of one worker), not by the clock, and draw random numbers "
        "from one seed.",
        stacklevel=2,
    )
    return True


def _numbers(model, states) -> list[tuple[str, float]]:
    """Returns names and numbers that differ if the states of two trainings differ."""
    trained = [(each.path, each.value) for each in model.trainable_variables]
    variables = [*trained, *states]
    # Sums of squares make no copy of a weight, and are read at once.
    sums = [
        tf.cast(tf.nn.l2_loss(_floats(tf.convert_to_tensor(each))), tf.float64)
        for _, each in variables
    ]
    norms = np.sqrt(2 * tf.stack(sums).numpy()) if sums else []
    optimizers = keras_optimizers.optimizers_of(model)
    return [
        *((f"'{name}'", norm) for (name, _), norm in zip(variables, norms, strict=True)),
        *(
            ("the learning rate", float(each.learning_rate))
            for each in optimizers
            if hasattr(each, "learning_rate")
        ),
    ]


def _floats(value):
    is_wide = value.dtype.is_floating and value.dtype.size >= 4
    return value if is_wide else tf.cast(value, tf.float32)
