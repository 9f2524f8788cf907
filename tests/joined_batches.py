"""The truth of workers that make updates together: plain Keras, with their batches joined.

What follows makes updates of 32 examples:

    with joined_batches(2):
        model.fit(x, y, batch_size=16)
"""

import contextlib
import functools
from collections.abc import Generator
from typing import Any
from unittest import mock

import tensorflow as tf
from keras.src.backend.tensorflow import trainer


@contextlib.contextmanager
def joined_batches(number: int) -> Generator[None]:
    """Lets `fit` of plain Keras join so many batches in a row, of whatever data it has.

    What it validates with stays as it is.
    """
    fit = trainer.TensorFlowTrainer.fit

    @functools.wraps(fit)
    def joining_fit(model, *args, **kwargs):
        make = trainer.TFEpochIterator
        makes = iter([functools.partial(_joining, make, number)])  # The first is not of validation.
        with mock.patch.object(trainer, "TFEpochIterator", lambda **kw: next(makes, make)(**kw)):
            return fit(model, *args, **kwargs)

    with mock.patch.object(trainer.TensorFlowTrainer, "fit", joining_fit if number > 1 else fit):
        yield


def _joining(make, number, **kwargs):
    iterator = make(**kwargs)
    iterator.data_adapter = _Joined(iterator.data_adapter, number)
    iterator._num_batches = iterator.data_adapter.num_batches
    iterator._distributed_dataset = joined(iterator._distributed_dataset, number)
    return iterator


class _Joined:
    """Stands for a data adapter of Keras."""

    def __init__(self, adapter: Any, number: int):
        self._adapter, self._number = adapter, number

    def __getattr__(self, name: str):
        return getattr(self._adapter, name)

    @property
    def num_batches(self) -> int | None:
        number = self._adapter.num_batches
        return number and -(-number // self._number)


def joined(dataset: tf.data.Dataset, number: int) -> tf.data.Dataset:
    """Returns the batches of a dataset, so many joined into one; the last has what is left."""
    is_tuple = isinstance(dataset.element_spec, tuple)
    return dataset.ragged_batch(number).map(
        lambda *batch: tf.nest.map_structure(_merge, batch if is_tuple else batch[0])
    )


def _merge(batches: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """Merges the axis of the batches with that of their examples."""
    if isinstance(batches, tf.Tensor):  # All are of one size.
        return tf.reshape(batches, tf.concat([[-1], tf.shape(batches)[2:]], 0))
    examples = batches.merge_dims(0, 1)
    return examples.to_tensor() if isinstance(examples, tf.RaggedTensor) else examples
