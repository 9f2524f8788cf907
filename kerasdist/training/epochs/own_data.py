"""What one worker has of the data of a call, and the iterators that it makes of it."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_fit
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import data_checks, division, element_order, file_caches
from kerasdist.training.epochs.data_source import DataSource, Progress

# Elements that the shuffles of a dataset may hold for its state to be kept, once for each iterator:
# TensorFlow writes 164 bytes for each, in 10 us.
_MOST_SHUFFLED = 200_000


class OwnData:
    """The part that one worker has of the data, and the iterators over it.

    Args:
        dataset: That of the program, or what Keras' reader makes of its data.
        strategy: A strategy of ours.
        is_function: Whether a function has made it for this worker.
        class_weight: Of data that is distributed already, which Keras does not weigh; or None.

    Attributes:
        division: What this worker has, where that is not all.
        part: What it reads, and prepares.
        num_parts: Workers that read, or prepare, parts of their own; 1 if all have the same.
        calls_python: Whether Python makes the data.
        has_small_state: Whether TensorFlow may know where the data is, in a few bytes.
        num_iterators: How many were made, with those of a training that goes on.
        ready: The source that is taken next, where there is one already.
        last: A weak reference to the one that was made last: see `DataSource`.
        progress: Of that one.
        progress_before: Of the one before.

    Raises:
        ValueError: Workers would write one file, or get other examples than one device does.
    """

    num_iterators = 0
    last: Any = None

    def __init__(
        self,
        dataset: Any,
        strategy: tf.distribute.Strategy,
        *,
        is_function: bool,
        class_weight: dict | None,
    ):
        self.dataset, self.strategy, self._class_weight = dataset, strategy, class_weight
        file_caches.check(dataset, strategy)
        data_checks.check_service(dataset, strategy, is_own=is_function)
        self.division = division.divide(dataset, strategy, is_function=is_function)
        own, num_workers = self.division.of_files or self.division.of_batches, peers.count(strategy)
        self.part, self.num_parts = (dataset, 1) if own is None else (own, num_workers)
        if num_workers > self.num_parts and isinstance(dataset, tf.data.Dataset):
            self.part = element_order.in_order(dataset)  # All workers read and prepare it.
        self.calls_python = dataset_adapter.calls_python(dataset)
        self.has_small_state = not self.calls_python and _may_keep_state(dataset)
        self.ready: DataSource | None = None
        self.progress = self.progress_before = Progress()

    @functools.cached_property
    def texts(self) -> int:
        """A number that differs for other paths in the dataset."""
        return dataset_adapter.digest_of_texts(self.dataset)

    def take(self) -> DataSource:
        """Returns the source that is ready, or that of a new iterator."""
        source, self.ready = self.ready, None
        return source or self.source_of(iter(self.part))

    def source_of(self, iterator: Any, progress: Progress | None = None) -> DataSource:
        """Returns the source of a new iterator over the part, and of what is known of that."""
        if progress is None:
            begin = self.state_of(iterator)
            progress = Progress(num_iterators=self.num_iterators, begin=begin)
        if self.division.of_files is not None and progress.next_size is None:
            *_, size = next(iterator)
            progress.next_size = self._sum_of(size)
        is_distributed = isinstance(iterator, tf.distribute.DistributedIterator)
        if self._class_weight is not None:
            iterator = _with_class_weight(iterator, self._class_weight, self.strategy)
        source = DataSource(
            iterator,
            progress=progress,
            is_distributed=is_distributed,
            calls_python=self.calls_python,
        )
        self.progress_before, self.progress = self.progress, progress
        self.num_iterators, self.last = progress.num_iterators + 1, weakref.ref(source)
        return source

    def state_of(self, iterator: Iterator) -> bytes | None:
        """Returns what tf.data keeps of an iterator, if a checkpoint may need it; or None."""
        if not (self.has_small_state and running_call.keeps_data_state()):
            return None
        state = dataset_adapter.portable_state(iterator)
        self.has_small_state = state is not None  # TensorFlow logs each time that it has none.
        return state

    def read(self, source: DataSource, num_steps: int) -> tuple[int, Any]:
        """Reads batches; returns how many there were, and the examples of the next one."""
        num_taken, next_size = 0, None
        with contextlib.suppress(tf.errors.OutOfRangeError):
            for batch in itertools.islice(source, num_steps):
                num_taken += 1
                if source.next_size is not None:
                    *_, next_size = batch
        return num_taken, None if next_size is None else self._sum_of(next_size)

    def _sum_of(self, size: Any):
        return tf.constant(int(peers.sum_over(self.strategy, size)), tf.int64)


def _may_keep_state(dataset: Any) -> bool:
    if dataset_adapter.num_shuffled(dataset) > _MOST_SHUFFLED:
        return False
    # TensorFlow, if asked for a state, logs that there is none; files may be complete by now.
    return not (dataset_adapter.draws(dataset) or dataset_adapter.cache_files(dataset))


def _with_class_weight(iterator: Iterator, class_weight: dict, strategy: tf.distribute.Strategy):
    """Yields distributed batches with the weight of each example's class as `sample_weight`."""
    weigh = keras_fit.class_weight_function(class_weight)
    first, *_ = peers.local_replicas(strategy)
    for batch in iterator:
        parts = map(strategy.experimental_local_results, batch)
        replicas = [weigh(*data) for data in zip(*parts, strict=True)]
        yield strategy.experimental_distribute_values_from_function(
            lambda context, replicas=replicas: replicas[context.replica_id_in_sync_group - first]
        )
