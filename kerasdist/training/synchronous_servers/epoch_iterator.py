"""Divides the epochs of synchronous workers into calls of some updates."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.training.context import deployment, running_call
from kerasdist.training.parameter_servers.data_source import Pass
from kerasdist.training.parameter_servers.epoch_iterator import WorkerEpochIterator


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Updates:
    """Some updates in a row.

    Attributes:
        source: The pass over the data that this epoch is of.
        position: Of their first batch in it, from 0.
        end: Behind their last batch.
        first_step: Which update of the epoch is the first, from 0.
    """

    source: Pass
    position: int
    end: int
    first_step: int


class SynchronousEpochIterator(WorkerEpochIterator):
    """Hands the user's data to `fit`, of which a step is an update, of several batches.

    Args: those of `EpochIterator`.

    Raises:
        ValueError: As there; or the data has no end, or the chief has to read it.
    """

    def __init__(self, *args: Any, distribute_strategy: tf.distribute.Strategy, **kwargs: Any):
        remote = deployment.remote_workers(distribute_strategy)
        assert remote.num_to_aggregate is not None
        self._num_to_aggregate = remote.num_to_aggregate
        self._num_worker_batches = 0
        super().__init__(*args, distribute_strategy=distribute_strategy, **kwargs)
        if self.steps_per_epoch or not self._num_worker_batches:
            raise ValueError(
                "Synchronous workers over parameter servers need data of known length, of which "
                "an epoch has all. Leave out `steps_per_epoch`, and give a dataset with an end."
            )

    def _note_length(self) -> None:
        super()._note_length()
        self._num_worker_batches = self.num_batches_of_data or 0
        updates = math.ceil(self._num_worker_batches / self._num_to_aggregate)
        self.num_batches_of_data = self._length = updates or None

    def calls(self) -> Iterator[tuple[int, int, Any]]:
        """Yields (first step, last step, updates) for each call."""
        self.data_adapter.on_epoch_begin()
        source: Any = self.make_iterator()
        if not source.data.is_on_workers:
            raise ValueError(
                "Synchronous workers over parameter servers read their data themselves, and cannot "
                "read this: Python makes it, or it is too large. Give a tf.data.Dataset of files."
            )
        num_steps = self.steps_per_execution
        for first in range(0, self.num_batches_of_data, num_steps):
            last = first + num_steps
            self.num_seen = last
            yield (
                first,
                last - 1,
                Updates(
                    source=source,
                    position=first * self._num_to_aggregate,
                    end=min(last * self._num_to_aggregate, self._num_worker_batches),
                    first_step=first,
                ),
            )
            running_call.note_steps(min(last, self.num_batches_of_data))
        self.make_iterator()  # As Keras does, each of which changes the order of the next.
        self.data_adapter.on_epoch_end()
