"""Says when a `fit` begins what the loss of a worker would cost, where a job goes on after it."""

import os
from collections.abc import Sequence

import keras

from kerasdist.support import environment, memory
from kerasdist.training.context import peers, running_call
from kerasdist.training.report import log_lines

_LINE = (
    "If this job loses a worker, it goes on with those that are left, but trains from the first "
    "step again: `fit` has no Checkpoint. Give it kerasdist.callbacks.Checkpoint(directory)."
)


def say_cost(model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Says once, on the chief, that a `fit` of an elastic launch cannot be resumed, if so.

    Args:
        model: Whose `fit` has begun.
        callbacks: All that it calls; they have heard of it.
    """
    training = running_call.training_of(model)
    if not os.environ.get(environment.WORKERS) or training is None:
        return
    is_resumable = training.keeps_data_state or any(
        isinstance(each, keras.callbacks.BackupAndRestore) for each in callbacks
    )
    strategy = model.distribute_strategy
    if not is_resumable and peers.is_chief(strategy) and memory.PROCESS.say_once(_LINE):
        log_lines.say(strategy, _LINE)
