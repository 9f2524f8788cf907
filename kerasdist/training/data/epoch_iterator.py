"""Hands the user's data to `fit`, `evaluate` and `predict`, epoch by epoch."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_fit
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import (
    data_checks,
    division,
    element_order,
    file_caches,
    input_functions,
)
from kerasdist.training.data.data_source import DataSource

# Elements that the shuffles of a dataset may hold for its state to be kept: TensorFlow writes 164
# bytes for each, in 10 us.
_MOST_SHUFFLED = 200_000


class GlobalBatches:
    """The batches of one call of the train, test or predict function, and what came of them.

    Args:
        source: Of global batches, or of values that are distributed already.
        first_step: Steps of the epoch before them.
        num_steps: How many batches this call may take.
        is_exact: Whether `num_steps` batches are known to be left.

    Attributes:
        num_taken: The answer: how many steps there were. None before it.
    """

    def __init__(self, source: DataSource, *, first_step: int, num_steps: int, is_exact: bool):
        self.source = source
        self.first_step = first_step
        self.num_steps = num_steps
        self.is_exact = is_exact
        self.num_taken: int | None = None

    @property
    def iterator(self):
        """The iterator itself; to be used and not kept."""
        return self.source.iterator

    @property
    def next_size(self):
        """The examples of the next global batch, where workers read parts of their own; or None."""
        return self.source.next_size

    @property
    def is_distributed(self) -> bool:
        """Whether a batch has a value for each replica already."""
        return self.source.is_distributed

    def answer(self, num_taken: int, next_size: Any = None) -> None:
        """Notes what the step function did.

        Args:
            num_taken: How many steps there were.
            next_size: The examples of the global batch after them, where there was one before.

        Raises:
            StopIteration: There was no batch left.
        """
        self.num_taken = num_taken
        self.source.next_size = next_size
        running_call.note_steps(self.first_step + num_taken)
        if num_taken == 0:
            raise StopIteration

    def __iter__(self):
        return self

    def __next__(self):
        """Returns the next batch; `predict` takes them one by one."""
        return next(self.source)


class EpochIterator(keras_fit.EpochIterator):
    """Hands the user's data to `fit`, `evaluate` and `predict`, epoch by epoch.

    Keras' own decides when an epoch ends and when the data begins anew. A shuffled dataset changes
    its order with every iterator that is made of it, the unused ones included, so that only Keras'
    own count gives Keras' order. Here, the last call of `steps_per_execution` steps takes no more
    than there is, and a model is built from the shapes of the data, not from a batch of it.

    Args: those of `keras.Model.fit`, by the same names; `distribute_strategy` is one of ours. `x`
        can be a function of `tf.distribute.InputContext` (see `input_functions`).

    Raises:
        ValueError: The workers have different numbers of batches, or get other examples
            of a tf.data service than one device does.
    """

    def __init__(
        self,
        x: Any = None,
        *args: Any,
        class_weight: dict | None = None,
        distribute_strategy: tf.distribute.Strategy,
        **kwargs: Any,
    ):
        self._strategy = distribute_strategy
        is_function = input_functions.is_function(x)
        if is_function:
            x = input_functions.dataset_of_worker(x, distribute_strategy)
        is_distributed = isinstance(x, tf.distribute.DistributedDataset)
        self._class_weight = class_weight if is_distributed else None
        class_weight = None if is_distributed else class_weight
        super().__init__(x, *args, class_weight=class_weight, **kwargs)
        self._dataset = self.data_adapter.get_tf_dataset()
        if keras_fit.is_generator(self.data_adapter) and peers.count(self._strategy) > 1:
            # Prefetched data is lost with the iterator: more of it on one worker than on others.
            self._dataset = dataset_adapter.without_prefetch(self._dataset)
        # A function returns the batches of a worker, which change with the number of workers.
        size = None if is_function or is_distributed else self._batch_size()
        file_caches.check(self._dataset, distribute_strategy)
        data_checks.check_service(self._dataset, distribute_strategy, is_own=is_function)
        self._divide(is_function=is_function)
        # TensorFlow counts the batches of a replica for some distributed datasets: not to be used.
        self._is_counted = not is_distributed and self._own_data is None
        self._num_iterators = 0
        self._calls_python = dataset_adapter.calls_python(self._dataset)
        self._has_small_state = not self.steps_per_epoch and self._may_keep_state()
        if not running_call.reads_whole_data():  # One worker alone may predict.
            has_end = not self.steps_per_epoch and self._is_counted
            length = self.data_adapter.num_batches if has_end else None
            data_checks.check_equal_num_batches(self._strategy, length)
        self._put_in_order()
        self._state: bytes | None = None  # That of the last iterator, before its first batch.
        self._next_iterator: Any = None
        self._note_length()
        num_batches = self.num_batches_of_data
        running_call.note_data(batch_size=size, num_batches=num_batches, state=self.state)

    def _divide(self, *, is_function: bool) -> None:
        """Makes this worker's data, if it is not all of it."""
        # Triples of `file_shards.with_next_size`, and parts of the batches that all workers read.
        self._own_data = self._own_parts = None
        if is_function:
            self._own_data = input_functions.share(self._dataset, self._strategy)
        else:
            divided = division.divide(self._dataset, self._strategy)
            self._own_data, self._own_parts = divided.of_files, divided.of_batches

    def _put_in_order(self) -> None:
        """Gives data that all workers read and prepare one order."""
        has_parts = self._own_data is not None or self._own_parts is not None
        is_prepared_by_all = peers.count(self._strategy) > 1 and not has_parts
        if is_prepared_by_all and isinstance(self._dataset, tf.data.Dataset):
            self._dataset = element_order.in_order(self._dataset)

    def _may_keep_state(self) -> bool:
        """Whether TensorFlow may know where the dataset is, in a few bytes."""
        if dataset_adapter.num_shuffled(self._dataset) > _MOST_SHUFFLED:
            return False
        # TensorFlow, if asked for a state, logs that there is none.
        if self._calls_python or dataset_adapter.draws(self._dataset):
            return False
        return not dataset_adapter.cache_files(self._dataset)  # They may be complete by now.

    def _batch_size(self) -> int | None:
        size = keras_fit.batch_size_of(self.data_adapter)
        return dataset_adapter.batch_size_of(self._dataset) if size is None else size

    @property
    def element_spec(self):
        """Shapes and dtypes of a batch, with an open batch axis; nothing is read to find them."""
        return dataset_adapter.batch_spec(self._dataset.element_spec)

    def reset(self):
        """Starts anew at the first batch."""
        super().reset()
        self._note_length()

    def __iter__(self):
        """Begins an epoch; the first one where the `fit` is to go on.

        All that comes before is read again, so that whatever gives the data is in the same state;
        where tf.data knows that state, nothing of the epochs before.
        """
        progress = running_call.take_data_place()
        if progress is None:
            return super().__iter__()
        for _ in range(self._go_on(progress.state), progress.epoch):
            self._pass_over(math.inf)
        return self._pass_over(progress.step)

    def state(self, *, begins_epoch: bool) -> tuple[int, bytes] | None:
        """Returns the state of `DataPlace`; None where all that was read says what comes next.

        Called by all workers, which have the same or none.

        Args:
            begins_epoch: Whether an epoch is about to begin: its iterator is then made now.
        """
        if not self._is_shared(self._state):
            return None
        if begins_epoch and self._next_iterator is None:
            self._next_iterator = self.make_iterator()
        state = self._state
        return (self._num_iterators - 1, state) if self._is_shared(state) and state else None

    def _is_shared(self, state: bytes | None) -> bool:
        """Whether all workers have this state, which is there."""
        return peers.are_alike(self._strategy, state or b"") and bool(state)

    def _go_on(self, state: tuple[int, bytes] | None) -> int:
        """Makes the iterator of a state the next one; returns the epoch that it begins."""
        if state is None:
            return 0
        self._num_iterators, content = state
        iterator = self._new_iterator()
        fits = dataset_adapter.set_portable_state(iterator, content)
        if peers.any_of(self._strategy, not fits):
            # One worker alone prepares whole batches, and has another state of the same data.
            if dataset_adapter.is_of_windows(content) == (self._own_parts is not None):
                warn(
                    "The dataset has other transformations than the one of the checkpoint. "
                    "Training goes on at the same place, perhaps with other batches."
                )
            # Nothing has been read from it: it is the first one.
            self._num_iterators, self._next_iterator = 1, self._source_of(iterator)
            return 0
        self._state = content
        # At the end of an epoch of known length Keras makes another one.
        epoch, is_between = divmod(state[0], 2 if self.num_batches_of_data else 1)
        source = self._source_of(iterator)
        self._next_iterator = None if is_between else source
        return epoch + is_between

    def _pass_over(self, num_steps: float):
        """Begins an epoch and reads so many of its steps, or all; returns its iterator."""
        iterator = super().__iter__()
        num_passed = 0
        while num_passed < num_steps:
            try:
                *_, batches = next(iterator)
            except StopIteration:
                break
            has_ended = True
            with self.catch_stop_iteration():
                num_passed += self._read_past(batches)
                has_ended = False
            if has_ended:
                break
        return iterator

    def _read_past(self, batches: GlobalBatches) -> int:
        """Reads the batches of a call; returns how many there were."""
        num_taken, next_size = 0, None
        for _ in range(batches.num_steps):
            try:
                batch = next(batches.iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            num_taken += 1
            if batches.next_size is not None:
                *_, next_size = batch
        if next_size is not None:
            next_size = tf.constant(peers.sum_over(self._strategy, next_size), tf.int64)
        batches.answer(num_taken, next_size)
        return num_taken

    def __next__(self) -> tuple[int, int, Any]:
        """Returns (first step, last step, batches) for a call of the step function."""
        begin_step, end_step, source = self.next_call()
        num_steps = self.steps_per_execution
        if self._length is not None:
            num_steps = min(num_steps, self._length - (self.num_seen - num_steps))
        batches = GlobalBatches(
            source,
            first_step=begin_step,
            num_steps=num_steps,
            is_exact=self._length is not None,
        )
        return begin_step, end_step, batches

    @contextlib.contextmanager
    def catch_stop_iteration(self):
        """Ends the epoch where the data ends."""
        with super().catch_stop_iteration():
            try:
                yield
            except tf.errors.OutOfRangeError:
                raise StopIteration from None
        if not self._is_counted:
            # Keras takes it for the length of the data; of what workers share, it may be chance.
            self.num_batches_of_data = None

    def _note_length(self):
        # Keras has read it before the data's `on_epoch_end`, which may change it.
        if not self._is_counted:
            self.num_batches_of_data = None
        # A `__len__` of Python's is only the number of steps: there may be less data, or more.
        is_promised = not keras_fit.is_python(self.data_adapter)
        self._length = self.num_batches_of_data or None if is_promised else None

    def make_iterator(self) -> Iterator:
        """Returns the iterator of the state that training goes on with, or a new one."""
        if self._next_iterator is None:
            return self._source_of(self._new_iterator())
        iterator, self._next_iterator = self._next_iterator, None
        return iterator

    def _new_iterator(self) -> Iterator:
        parts = (each for each in (self._own_data, self._own_parts) if each is not None)
        iterator = iter(next(parts, self._dataset))
        self._num_iterators += 1
        self._state = self._state_of(iterator)
        return iterator

    def _state_of(self, iterator: Iterator) -> bytes | None:
        if not (self._has_small_state and running_call.keeps_data_state()):
            return None
        state = dataset_adapter.portable_state(iterator)
        self._has_small_state = state is not None  # TensorFlow logs each time that it has none.
        return state

    def _source_of(self, iterator: Iterator) -> DataSource:
        if self._own_data is not None:
            *_, size = next(iterator)
            next_size = peers.sum_over(self._strategy, size)
            next_size = tf.constant(next_size, tf.int64)
            return DataSource(iterator, next_size=next_size, calls_python=self._calls_python)
        is_distributed = isinstance(iterator, tf.distribute.DistributedIterator)
        if self._class_weight is not None:
            iterator = _with_class_weight(iterator, self._class_weight, self._strategy)
        return DataSource(iterator, is_distributed=is_distributed, calls_python=self._calls_python)

    def warn_of_end(self):
        """Warns where the program has counted on more data."""
        if self.steps_per_epoch:
            super().warn_of_end()
        elif self.num_seen <= self.steps_per_execution:
            warn(
                "The data holds no batch: nothing was computed in this epoch. Check the files, "
                "filters, `take` and `skip` of the dataset; with `drop_remainder=True` it may be "
                "smaller than one batch."
            )
        # Data of unknown length has ended, as it should; Keras warns there, too.


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
