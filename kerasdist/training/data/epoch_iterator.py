"""Hands the user's data to `fit`, `evaluate` and `predict`, epoch by epoch."""

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_fit
from kerasdist.support.terminal import say
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import (
    data_checks,
    division,
    element_order,
    file_caches,
    input_functions,
    skipping,
)
from kerasdist.training.data.data_source import DataSource, Progress

# Elements that the shuffles of a dataset may hold for its state to be kept, once for each iterator,
# and with each checkpoint: TensorFlow writes 164 bytes for each, in 10 us.
_MOST_SHUFFLED, _MOST_SHUFFLED_NOW = 200_000, 10_000
# Bytes of the states of all workers that are written with each checkpoint.
_MOST_BYTES = 4 << 20
# What is said of each way to go on.
_NOTHING = "No data is read again."
_SKIPPED = "What comes before it in the data is skipped, without what prepares each element."
_READ = "The data of this epoch is read again up to that step."
_ALL = "All data is read again up to that step."
_OTHER = (
    "The dataset has other transformations than the one of the checkpoint. Training goes on at the "
    "same place, perhaps with other batches."
)


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
        self.source.note(num_taken, next_size)
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

    _next_iterator: Any = None
    _last_source: Any = None  # A weak reference: see `DataSource`.
    _is_skipped = False  # Whether that one does not know what was before.
    # Of that one, and of the one before.
    _progress = _progress_before = Progress()

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
        self._has_small_state = self._may_keep_state()
        self._has_small_place = self._has_small_state and self._may_keep_place(size)
        if not running_call.reads_whole_data():  # One worker alone may predict.
            has_end = not self.steps_per_epoch and self._is_counted
            length = self.data_adapter.num_batches if has_end else None
            data_checks.check_equal_num_batches(self._strategy, length)
        self._put_in_order()
        self._state: bytes | None = None  # That of the last iterator, before its first batch.
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
        is_prepared_by_all = peers.count(self._strategy) > self._num_parts
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

    def _may_keep_place(self, batch_size: int | None) -> bool:
        """Whether that is a few bytes in the midst of the data, too."""
        if not isinstance(self._dataset, tf.data.Dataset):
            return False
        if "cache" in dataset_adapter.transformations_of(self._dataset):
            return False  # With all that it holds.
        # Near the end of its data, an iterator does not know any more what was drawn for it.
        is_endless = self._dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if not (is_endless or skipping.is_drawn_early(self._dataset)):
            return False
        if dataset_adapter.num_shuffled(self._dataset) > _MOST_SHUFFLED_NOW:
            return False
        return dataset_adapter.num_bytes_held(self._dataset, batch_size) <= _MOST_BYTES

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

        Where tf.data knows the place, nothing is read; or only what decides the order of what comes
        before, or that of the last iterator, or all, so that whatever gives the data is in the same
        state.
        """
        place = running_call.take_data_place()
        if place is None:
            return super().__iter__()
        source, state = None, place.state
        if state is not None:
            if self.steps_per_epoch and 0 < (self._length or 0) <= state.num_steps:
                # The data is as long as before: Keras begins it anew.
                number = state.num_iterators + 1
                state = dataclasses.replace(
                    state, num_iterators=number, num_steps=0, is_begun=False, now=()
                )
            source = self._go_on(state)
        if source is not None and state is not None:
            return self._stand_at(source, place, max(0, state.num_steps - place.step))
        self._tell(_ALL)
        for _ in range(place.epoch):
            self._pass_over(math.inf)
        return self._pass_over(place.step)

    def state(self, *, step: int, is_over: bool) -> running_call.DataState | None:
        """Returns the state of the data; None where only all that was read says what comes next.

        Called by all workers, which have the same or none.

        Args:
            step: Steps of the present epoch that were made. With 0 an epoch is about to begin: its
                iterator is then made now.
            is_over: Whether the `fit` is.
        """
        if self._calls_python or not isinstance(self._data_here, tf.data.Dataset):
            return None
        known = functools.partial(
            running_call.DataState, num_parts=self._num_parts, texts=self._texts
        )
        goes_on = bool(step) or (self.steps_per_epoch and self.iterator is not None)
        if not goes_on and self._next_iterator is None:
            if is_over or not self._is_shared(self._state):
                begin = self._shared(self._state)
                return known(num_iterators=self._num_iterators, begin=begin)
            self._next_iterator = self.make_iterator()
        progress = self._progress
        if is_over and not progress.num_taken and self._progress_before.num_taken:
            progress = self._progress_before  # Of data that may be longer later.
        begin = self._shared(progress.begin)
        has_place = begin is not None and progress.num_taken and not is_over
        size = None if is_over else progress.next_size
        return known(
            num_iterators=progress.num_iterators,
            num_steps=progress.num_taken,
            is_begun=True,
            next_size=None if size is None else int(size),
            begin=begin,
            now=self._places() if has_place else (),
        )

    def _shared(self, state: bytes | None) -> bytes | None:
        return state if self._is_shared(state) else None

    def _is_shared(self, state: bytes | None) -> bool:
        """Whether all workers have this state, which is there."""
        return peers.are_alike(self._strategy, state or b"") and bool(state)

    def _places(self) -> tuple[bytes, ...]:
        """Returns where the data is: one state, or one of each worker if these read parts."""
        content, source = b"", self._last_source()
        if source is not None and self._has_small_place and not self._is_skipped:
            content = dataset_adapter.portable_state(source.iterator) or b""
            if len(content) * self._num_parts > _MOST_BYTES:
                content = b""
            self._has_small_place = bool(content)
        if peers.any_of(self._strategy, not content):
            return ()
        if self._num_parts == 1:
            return (content,)
        workers = range(self._num_parts)
        return tuple(peers.send(self._strategy, content, source=worker) for worker in workers)

    def _go_on(self, state: running_call.DataState) -> DataSource | None:
        """Returns the source that training goes on with, at its place; None to read all again."""
        if not isinstance(self._data_here, tf.data.Dataset):
            return None
        are_others = state.num_parts != self._num_parts or state.texts != self._texts
        if peers.any_of(self._strategy, are_others):
            # What is kept of a place may hold paths, of files that were moved since.
            begin = state.begin if self._is_divided_as(state) else None
            state = dataclasses.replace(state, begin=begin, now=(), next_size=None)
        now = state.now[peers.index_of(self._strategy) % len(state.now)] if state.now else None
        knows_begin = state.begin is not None and skipping.knows_order(self._dataset)
        if now is not None:
            source = self._restored(state, now)
            if source is not None:
                return source
            if not knows_begin:
                warn(_OTHER)
        if skipping.may_skip(self._data_here) and (state.num_steps or not knows_begin):
            source = self._skipped(state, knows_begin=knows_begin)
            if source is not None:
                return source
        return self._restored(state, None) if knows_begin else None

    def _is_divided_as(self, state: running_call.DataState) -> bool:
        """Whether data is whole, or in parts of the same kind, as that of a state was."""
        is_of_rows = state.begin is not None and dataset_adapter.is_of_windows(state.begin)
        are_parts = state.num_parts > 1, self._num_parts > 1
        return len({*are_parts}) == 1 and is_of_rows == (self._own_parts is not None)

    def _restored(self, state: running_call.DataState, now: bytes | None) -> DataSource | None:
        """Returns a source in a state of tf.data, and reads what is between that and its place.

        None where the state is of other data.
        """
        iterator = self._new_iterator()
        assert state.begin is not None
        if now is not None:  # Near the end of the data, it has no more of what has ended before.
            skipping.draw_late(self._data_here, self._num_read(state.num_iterators) + 1)
        fits = dataset_adapter.set_portable_state(iterator, state.begin, now)
        if peers.any_of(self._strategy, not fits):
            if now is not None:
                return None
            warn(_OTHER)
            # Nothing has been read from it: it is the first one.
            self._num_iterators, self._next_iterator = 1, self._source_of(iterator)
            return None
        self._state, self._num_iterators = state.begin, state.num_iterators + 1
        if not state.is_begun:
            self._num_iterators = state.num_iterators
            iterator = self._new_iterator()
        if now is not None:
            # For the orders that come after: they are those of what has not ended.
            has_ended = dataset_adapter.has_less(now, state.begin)
            if has_ended and skipping.is_drawn_early(self._data_here):
                dataset_adapter.set_portable_state(iter(self._data_here), state.begin)
            self._tell(_NOTHING)
            return self._source_of(iterator, next_size=state.next_size)
        self._tell(_READ if state.num_steps else _NOTHING)
        source = self._source_of(iterator)
        if state.num_steps:
            source.note(*self._read(source, state.num_steps))
        return source

    def _skipped(self, state: running_call.DataState, *, knows_begin: bool) -> DataSource | None:
        """Returns a source at its place that leaves out what is before; None if that is unknown."""
        num_made = state.num_iterators
        iterator = skipping.begun_after(
            self._data_here,
            state.num_steps,
            num_made=num_made,
            num_read=self._num_read(num_made),
            is_at_end=bool(self._length) and state.num_steps >= self._length,
        )
        if iterator is None or (knows_begin and not self._confirms(state)):
            return None
        self._num_iterators = num_made + 1
        self._state = state.begin if state.is_begun else None
        self._tell(_SKIPPED if state.num_steps else _NOTHING)
        return self._source_of(iterator, is_skipped=True)

    def _num_read(self, num_made: int) -> int:
        """Returns how many of the first iterators were read."""
        if self.num_batches_of_data and not self.steps_per_epoch:
            return (num_made + 1) // 2  # Keras makes another one at the end of an epoch.
        return num_made

    def _confirms(self, state: running_call.DataState) -> bool:
        """Whether the next order is that of the training that was interrupted.

        There, an earlier `fit`, or a callback, may have read the same dataset. The orders after it
        are then as they were.
        """
        probe = iter(self._data_here)
        found = dataset_adapter.portable_state(probe)
        self._set_order(probe, state)
        expected = dataset_adapter.portable_state(iter(self._data_here))
        fits = self._set_order(probe, state)
        if peers.any_of(self._strategy, not fits):
            warn(_OTHER)  # What is left of this epoch fits what was skipped all the same.
            return True
        return not peers.any_of(self._strategy, found is None or found != expected)

    def _set_order(self, probe: Iterator, state: running_call.DataState) -> bool:
        """Lets orders be drawn that come after the one of a state; returns False if none is."""
        assert state.begin is not None
        fits = dataset_adapter.set_portable_state(probe, state.begin)
        if not state.is_begun:
            iter(self._data_here)
        return fits

    def _stand_at(self, source: DataSource, place: running_call.DataPlace, num_before: int):
        """Begins an epoch in its midst, without reading what is before; returns its iterator.

        Args:
            source: Has the batches from there on.
            place: Of the epoch that goes on.
            num_before: Batches that `source` would have had for epochs before it.
        """
        source.progress.num_taken = num_before
        if self.steps_per_epoch:
            self.iterator, self.num_seen = source, num_before
        else:
            self._next_iterator = source
        return self._pass_over(place.step, reads=False)

    def _pass_over(self, num_steps: float, *, reads: bool = True):
        """Begins an epoch and passes over so many of its steps, or all; returns its iterator."""
        iterator = super().__iter__()
        num_passed = 0
        while num_passed < num_steps:
            try:
                *_, batches = next(iterator)
            except StopIteration:
                break
            has_ended = True
            with self.catch_stop_iteration():
                if reads:
                    batches.answer(*self._read(batches.source, batches.num_steps))
                else:
                    num_left = min(num_steps, self.num_batches_of_data or math.inf) - num_passed
                    batches.answer(int(min(batches.num_steps, num_left)), batches.next_size)
                num_passed += batches.num_taken
                has_ended = False
            if has_ended:
                self.end_epoch()  # As `fit` does where the data ends.
                break
        return iterator

    def _read(self, source: DataSource, num_steps: int) -> tuple[int, Any]:
        """Reads batches; returns how many there were, and the examples of the next one."""
        num_taken, next_size = 0, None
        for _ in range(num_steps):
            try:
                batch = next(source.iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            num_taken += 1
            if source.next_size is not None:
                *_, next_size = batch
        if next_size is not None:
            next_size = tf.constant(peers.sum_over(self._strategy, next_size), tf.int64)
        return num_taken, next_size

    def _tell(self, line: str) -> None:
        if peers.is_chief(self._strategy):
            say(line)

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

    @property
    def _data_here(self) -> Any:
        """What this worker reads, and prepares."""
        parts = (each for each in (self._own_data, self._own_parts) if each is not None)
        return next(parts, self._dataset)

    @property
    def _num_parts(self) -> int:
        """Workers that read, or prepare, parts of their own; 1 if all have the same."""
        return 1 if self._data_here is self._dataset else peers.count(self._strategy)

    @functools.cached_property
    def _texts(self) -> int:
        """A number that differs for other paths in the dataset."""
        return dataset_adapter.digest_of_texts(self._dataset)

    def _new_iterator(self) -> Iterator:
        iterator = iter(self._data_here)
        self._num_iterators += 1
        self._state = self._state_of(iterator)
        return iterator

    def _state_of(self, iterator: Iterator) -> bytes | None:
        if not (self._has_small_state and running_call.keeps_data_state()):
            return None
        state = dataset_adapter.portable_state(iterator)
        self._has_small_state = state is not None  # TensorFlow logs each time that it has none.
        return state

    def _source_of(
        self, iterator: Any, *, next_size: int | None = None, is_skipped: bool = False
    ) -> DataSource:
        """Returns the source of an iterator; `next_size` is given where it was read already."""
        if self._own_data is not None and next_size is None:
            *_, size = next(iterator)
            next_size = int(peers.sum_over(self._strategy, size))
        is_distributed = isinstance(iterator, tf.distribute.DistributedIterator)
        if self._class_weight is not None:
            iterator = _with_class_weight(iterator, self._class_weight, self._strategy)
        self._progress_before = self._progress
        self._progress = Progress(
            num_iterators=self._num_iterators - 1,
            begin=self._state,
            next_size=None if next_size is None else tf.constant(next_size, tf.int64),
        )
        source = DataSource(
            iterator,
            progress=self._progress,
            is_distributed=is_distributed,
            calls_python=self._calls_python,
        )
        self._last_source, self._is_skipped = weakref.ref(source), is_skipped
        return source

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
