"""Watch a train function: the batches of each call, and the variables of the model around it."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import keras_optimizers
from kerasdist.support.unique import by_unique_name
from kerasdist.training.data.batches import WorkerPart, gathered
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.hooks.train_function import EnclosingFunction


class WatchedStep(EnclosingFunction):
    """Stands in for the train function of a model, Keras' own or ours.

    Args:
        inside: The function.
        num_steps: How many batches a call of Keras' own may take: `steps_per_execution`.
        watch: Called as watch(batches, run) in the place of `inside`; `run()` is what that does and
            returns its logs and the number of steps. `batches` is None where each worker reads a
            part of its own.
        strategy: Of the model.
    """

    def __init__(
        self,
        inside: Callable,
        *,
        num_steps: int,
        watch: Callable,
        strategy: tf.distribute.Strategy | None,
    ):
        super().__init__(inside)
        self._num_steps, self._strategy = num_steps, strategy
        self._watch = watch

    def __call__(self, data: Any):
        if isinstance(data, GlobalBatches) and data.source.next_size is not None:
            return self._watch(None, lambda: (self.inside(data), data.num_taken))
        taken = _take(data, self._num_steps)

        def run():
            with _instead(data, taken) as batches:
                return self.inside(batches), len(taken)

        return self._watch([self._whole(batch) for batch in taken], run)

    def _whole(self, batch: Any) -> Any:
        """Returns a batch of all workers; where each has prepared a part, they call it together."""
        if not isinstance(batch, WorkerPart):
            return batch
        assert self._strategy is not None
        return gathered(batch, self._strategy)


def named_values(model: keras.Model, variables: Iterable[keras.Variable]) -> dict[str, np.ndarray]:
    """Returns the values of Keras variables by their paths.

    Each is the mean over the copies of this process: where these differ, none is right.
    """
    named = by_unique_name(variables, lambda variable: variable.path)
    return {name: value_of(model, variable) for name, variable in named.items()}


def value_of(model: keras.Model, variable: keras.Variable) -> np.ndarray:
    """Returns the value of a Keras variable: the mean over the copies of this process."""
    arrays = [np.asarray(copy) for copy in copies_of(model, variable)]
    return arrays[0] if len(arrays) == 1 else np.mean(arrays, axis=0, dtype="float64")


def copies_of(model: keras.Model, variable: keras.Variable) -> tuple:
    """Returns TensorFlow's variables of this process that a Keras variable consists of."""
    return model.distribute_strategy.experimental_local_results(variable.value)


def slots_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model's optimizers: its own, and those it keeps as a GAN does."""
    optimizers = keras_optimizers.optimizers_of(model)
    return [variable for optimizer in optimizers for variable in optimizer.variables]


def _take(data: Any, num_steps: int) -> list:
    """Takes the batches of a call from what `fit` hands to a train function.

    Raises:
        StopIteration: There is none left.
    """
    if not isinstance(data, GlobalBatches):
        batches = list(itertools.islice(data, num_steps))
    else:
        batches = list(itertools.islice(data.source.iterator, data.num_steps))
    if not batches:
        raise StopIteration
    return batches


@contextlib.contextmanager
def _instead(data: Any, batches: list):
    """Gives what a train function takes, with these batches in it."""
    if not isinstance(data, GlobalBatches):
        yield iter(batches)
        return
    source, iterator = data.source, data.source.iterator
    source.iterator = iter(batches)
    try:
        yield data
    finally:
        source.iterator = iterator
