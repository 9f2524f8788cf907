"""Keras' `fit`: the data that it reads, its epochs, logs and checkpoints.

Keras has no public way to say where the batches come from, or when an epoch is over; TensorFlow's
subclass of its iterator, which distributes, overrides the same methods as ours.

tests/private/test_keras_fit.py fails when one of these names moves. Written against Keras 3.12 to
3.15; `names.KERAS` stands where they differ.
"""

import contextlib
import operator
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers import epoch_iterator
from keras.src.trainers.data_adapters import (
    array_data_adapter,
    generator_data_adapter,
    tf_dataset_adapter,
)

from kerasdist.private import names

# SwapEMAWeights keeps here whether the model has the averages, and the optimizer the weights.
ARE_AVERAGES_SWAPPED_IN = "_ema_weights_in_model"
# ModelCheckpoint counts here the steps to the next of its `save_freq`.
STEPS_OF_MODEL_CHECKPOINT = ("_batches_seen_since_last_saving", "_last_batch_seen")


def _public(name: str) -> Any:
    return property(operator.attrgetter(name), lambda owner, value: setattr(owner, name, value))


class EpochIterator(epoch_iterator.EpochIterator):
    """Knows when an epoch ends, and when data begins anew.

    Attributes:
        iterator: The one over the data that an epoch goes on with; None before the first.
        num_seen: Steps that were taken of `iterator`, in whole calls.
        num_batches_of_data: How many batches the data has; None where nobody knows. The public
            `num_batches` is that of an epoch.
    """

    iterator = _public("_current_iterator")
    num_seen = _public("_steps_seen")
    num_batches_of_data = _public("_num_batches")

    def make_iterator(self) -> Iterator:
        """Returns a new iterator over the data, from its first batch."""
        return super()._get_iterator()

    def calls(self) -> Iterator[tuple[int, int, Any]]:
        """Yields (first step, last step, iterator over batches) for each call of an epoch."""
        return super()._enumerate_iterator()

    def next_call(self) -> tuple[int, int, Any]:
        """Returns the next of `calls()`."""
        calls: Any = self._epoch_iterator  # Since `__iter__`.
        return next(calls)

    def end_epoch(self) -> None:
        """Leaves out the rest of `calls()`, with what Keras does after the last one."""
        self._epoch_iterator = iter(())

    def warn_of_end(self) -> None:
        """Says that the data has ended before the epoch."""
        super()._interrupted_warning()

    def _get_iterator(self):
        return self.make_iterator()

    def _enumerate_iterator(self):
        return self.calls()

    def _interrupted_warning(self):
        self.warn_of_end()


def num_bytes(adapter: Any) -> int:
    """Returns the size of the arrays that Keras' reader holds; 0 where it holds none."""
    arrays = keras.tree.flatten(getattr(adapter, "_inputs", None))
    return sum(getattr(getattr(array, "array", array), "nbytes", 0) for array in arrays)


def batch_size_of(adapter: Any) -> int | None:
    """Returns the examples of a batch; None where Keras' reader does not know them."""
    # There may be no batches.
    with contextlib.suppress(AttributeError, IndexError, TypeError, ValueError):
        return adapter.batch_size
    return None


def is_python(adapter: Any) -> bool:
    """Whether Keras' reader calls Python for every batch."""
    return not isinstance(
        adapter, (tf_dataset_adapter.TFDatasetAdapter, array_data_adapter.ArrayDataAdapter)
    )


def is_generator(adapter: Any) -> bool:
    """Whether Keras' reader goes on in one Python generator, also in a new iterator."""
    return isinstance(adapter, generator_data_adapter.GeneratorDataAdapter)


def class_weight_function(class_weight: dict) -> Callable:
    """Returns Keras' function (x, y) -> (x, y, weight of the class)."""
    return tf_dataset_adapter.make_class_weight_map_fn(class_weight)


def weighs_classes(mapped: Any) -> bool:
    """Whether a dataset of a `map` is the one that Keras adds for `class_weight`."""
    (wrapper,) = mapped._functions()
    known: Any = class_weight_function({0: 1.0})
    return getattr(wrapper._func, "__code__", None) is known.__code__


def begin_at(model: keras.Model, epoch: int | None) -> None:
    """Lets the `fit` that begins start with an epoch, as BackupAndRestore does; None as it is."""
    names.overwrite(model, "_initial_epoch", epoch)


def logs_of_batch(logs: Any, *, is_eager: bool = False) -> dict:
    """Returns the logs of a step in the form that `train_on_batch` and `test_on_batch` expect.

    Keras 3.12 and 3.13 make an array of each, with a function that sees plain dicts alone.

    Args:
        logs: A dict of numbers, of which `nested()` has the dicts that the step returned.
        is_eager: Whether the step ran eagerly.
    """
    if names.KERAS >= (3, 14):
        return logs.nested()
    return {name: np.asarray(log, None if is_eager else "float32") for name, log in logs.items()}


@contextlib.contextmanager
def compile_config_kept(model: keras.Model) -> Generator[None]:
    """Gives `model` back what it was compiled with.

    Keras takes the optimizer out of it when it saves to .h5. On the chief alone: a clone would then
    make other variables there than on the other workers, which wait for the same ones.
    """
    kept = getattr(model, "_compile_config", None)
    before = compile_arguments(model)
    try:
        yield
    finally:
        if kept:
            kept.config = before


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns what `compile` was called with, by the names of its arguments; empty without it."""
    kept = getattr(model, "_compile_config", None)
    return dict(kept.config) if kept else {}


class QuietCheckpoint(keras.callbacks.ModelCheckpoint):
    """Decides at the end of an epoch as Keras' own does, and makes no folder and prints nothing.

    `model.save` is for others to keep from writing. What is saved between two steps is decided by
    the logs of one process, so that here nothing is done for it.
    """

    # The one place between the decision, which may be the user's own too, and the file.
    def _save_model(self, epoch: int, batch: int | None, logs: dict | None):
        if batch is not None:
            return
        kept = self.filepath, self.verbose
        # Keras makes no folder where the path has none.
        self.filepath, self.verbose = os.path.basename(self.filepath), 0
        try:
            super()._save_model(epoch, batch, logs)
        finally:
            self.filepath, self.verbose = kept
