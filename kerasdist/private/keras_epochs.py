"""Keras' iterator over the epochs of `fit`, with public names for what ours does otherwise.

It has no public way to say where the batches come from, or when an epoch is over; TensorFlow's
subclass of it, which distributes, overrides the same methods.

tests/private/test_keras_epochs.py fails when one of these names moves. Written against Keras 3.12
to 3.15.
"""

import operator
from collections.abc import Iterator
from typing import Any

from keras.src.trainers import epoch_iterator


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

    def warn_of_end(self) -> None:
        """Says that the data has ended before the epoch."""
        super()._interrupted_warning()

    def _get_iterator(self):
        return self.make_iterator()

    def _enumerate_iterator(self):
        return self.calls()

    def _interrupted_warning(self):
        self.warn_of_end()
