"""Where the data of a `fit` is, for its checkpoints, and how a later one goes on there.

Where tf.data knows the place, nothing is read; or only what decides the order of what comes before,
or that of the last iterator, or all, so that whatever gives the data is in the same state.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter
from kerasdist.support.terminal import say
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers
from kerasdist.training.context.running_call import DataState
from kerasdist.training.epochs import skipping
from kerasdist.training.epochs.data_source import DataSource, Progress
from kerasdist.training.epochs.own_data import OwnData

# For a state to be kept with each checkpoint: elements that the shuffles of a dataset may hold, and
# bytes of the states of all workers.
_MOST_SHUFFLED, _MOST_BYTES = 10_000, 4 << 20
# What is said of each way to go on.
ALL = "All data is read again up to that step."
_READ = "The data of this epoch is read again up to that step."
_SKIPPED = "What comes before it in the data is skipped, without what prepares each element."
_NOTHING = "No data is read again."
_OTHER = (
    "The dataset has other transformations than the one of the checkpoint. Training goes on at the "
    "same place, perhaps with other batches."
)


def tell(strategy: tf.distribute.Strategy, line: str) -> None:
    """Says how training goes on; the chief does."""
    if peers.is_chief(strategy):
        say(line)


class DataStates:
    """The states that the data of one worker is in; all workers call its methods together.

    Args:
        own: What this worker has of the data.
        batch_size: The examples of a batch, where that is known.
    """

    def __init__(self, own: OwnData, batch_size: int | None):
        self._own, self._strategy = own, own.strategy
        self._has_small_place = own.has_small_state and _may_keep_place(own.dataset, batch_size)

    def now(self, *, goes_on: bool, is_over: bool) -> DataState | None:
        """Returns the state of the data; see `EpochIterator.state`.

        Args:
            goes_on: Whether the next step goes on with the last iterator, and begins no new one.
            is_over: Whether the `fit` is.
        """
        own = self._own
        if own.calls_python or not isinstance(own.part, tf.data.Dataset):
            return None
        known = functools.partial(DataState, num_parts=own.num_parts, texts=own.texts)
        if not goes_on and own.ready is None:
            begin = self._shared(own.progress.begin)
            if is_over or begin is None:
                return known(num_iterators=own.num_iterators, begin=begin)
            own.ready = own.take()
        progress = own.progress
        if is_over and not progress.num_taken and own.progress_before.num_taken:
            progress = own.progress_before  # Of data that may be longer later.
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

    def _shared(self, begin: bytes | None) -> bytes | None:
        """Returns a state that is there, and the same on all workers, or None."""
        are_alike = peers.are_alike(self._strategy, begin or b"")
        return begin if are_alike and begin else None

    def _places(self) -> tuple[bytes, ...]:
        """Returns where the data is: one state, or one of each worker if these read parts."""
        own, content, source = self._own, b"", self._own.last()
        if source is not None and self._has_small_place and not own.progress.is_skipped:
            content = dataset_adapter.portable_state(source.iterator) or b""
            if len(content) * own.num_parts > _MOST_BYTES:
                content = b""
            self._has_small_place = bool(content)
        if peers.any_of(self._strategy, not content):
            return ()
        if own.num_parts == 1:
            return (content,)
        workers = range(own.num_parts)
        return tuple(peers.send(self._strategy, content, source=worker) for worker in workers)

    def source_at(self, state: DataState, *, num_read: int, is_at_end: bool) -> DataSource | None:
        """Returns the source that training goes on with, at its place; None to read all again.

        Args:
            state: That of the checkpoint.
            num_read: How many of the iterators before its own were read.
            is_at_end: Whether the data has no more.
        """
        own = self._own
        if not isinstance(own.part, tf.data.Dataset):
            return None
        are_others = state.num_parts != own.num_parts or state.texts != own.texts
        if peers.any_of(self._strategy, are_others):
            # What is kept of a place may hold paths, of files that were moved since.
            begin = state.begin if self._is_divided_as(state) else None
            state = dataclasses.replace(state, begin=begin, now=(), next_size=None)
        knows_begin = state.begin is not None and skipping.knows_order(own.dataset)
        source = None
        if state.now:
            source = self._restored(state, num_read)
            if source is None and not knows_begin:
                warn(_OTHER)
        may_skip = source is None and skipping.may_skip(own.part)
        if may_skip and (state.num_steps or not knows_begin):
            source = self._skipped(state, num_read, is_at_end=is_at_end, knows_begin=knows_begin)
        return self._read_again(state) if source is None and knows_begin else source

    def _is_divided_as(self, state: DataState) -> bool:
        """Whether data is whole, or in parts of the same kind, as that of a state was."""
        is_of_rows = state.begin is not None and dataset_adapter.is_of_windows(state.begin)
        has_rows = self._own.division.of_batches is not None
        return (state.num_parts > 1, is_of_rows) == (self._own.num_parts > 1, has_rows)

    def _restored(self, state: DataState, num_read: int) -> DataSource | None:
        """Returns a source that tf.data has put at its place; None where it is of other data."""
        part, begin, size = self._own.part, state.begin, state.next_size
        now = state.now[peers.index_of(self._strategy) % len(state.now)]
        iterator = iter(part)
        # Near the end of the data, it has no more of what has ended before.
        skipping.draw_late(part, num_read + 1)
        if begin is None or not self._fits(iterator, begin, now):
            self._own.num_iterators += 1  # It has drawn an order.
            return None
        # For the orders that come after: they are those of what has not ended.
        if dataset_adapter.has_less(now, begin) and skipping.is_drawn_early(part):
            dataset_adapter.set_portable_state(iter(part), begin)
        tell(self._strategy, _NOTHING)
        next_size = None if size is None else tf.constant(size, tf.int64)
        progress = Progress(num_iterators=state.num_iterators, begin=begin, next_size=next_size)
        return self._own.source_of(iterator, progress)

    def _read_again(self, state: DataState) -> DataSource | None:
        """Returns a source after the steps that it had; None where it is of other data."""
        own, begin = self._own, state.begin
        iterator = iter(own.part)
        if not self._fits(iterator, begin):
            warn(_OTHER)
            own.ready = own.source_of(iterator)  # Nothing has been read from it.
            return None
        if not state.is_begun:
            iterator = iter(own.part)
            begin = own.state_of(iterator)
        tell(self._strategy, _READ if state.num_steps else _NOTHING)
        source = own.source_of(iterator, Progress(num_iterators=state.num_iterators, begin=begin))
        if state.num_steps:
            source.note(*own.read(source, state.num_steps))
        return source

    def _fits(self, iterator: Iterator, begin: bytes | None, now: bytes | None = None) -> bool:
        """Gives a new iterator a state; returns whether it is one of all workers' data."""
        fits = dataset_adapter.set_portable_state(iterator, begin, now)
        return not peers.any_of(self._strategy, not fits)

    def _skipped(
        self, state: DataState, num_read: int, *, is_at_end: bool, knows_begin: bool
    ) -> DataSource | None:
        """Returns a source at its place that leaves out what is before; None if that is unknown."""
        part, num_made = self._own.part, state.num_iterators
        iterator = skipping.begun_after(
            part, state.num_steps, num_made=num_made, num_read=num_read, is_at_end=is_at_end
        )
        if iterator is None or (knows_begin and not self._confirms(state)):
            return None
        tell(self._strategy, _SKIPPED if state.num_steps else _NOTHING)
        begin = state.begin if state.is_begun else None
        progress = Progress(num_iterators=num_made, begin=begin, is_skipped=True)
        return self._own.source_of(iterator, progress)

    def _confirms(self, state: DataState) -> bool:
        """Whether the next order is that of the training that was interrupted.

        There, an earlier `fit`, or a callback, may have read the same dataset. The orders after it
        are then as they were.
        """
        part = self._own.part
        probe = iter(part)
        found = dataset_adapter.portable_state(probe)
        _set_order(part, probe, state)
        expected = dataset_adapter.portable_state(iter(part))
        if peers.any_of(self._strategy, not _set_order(part, probe, state)):
            warn(_OTHER)  # What is left of this epoch fits what was skipped all the same.
            return True
        return not peers.any_of(self._strategy, found is None or found != expected)


def _set_order(part: tf.data.Dataset, probe: Iterator, state: DataState) -> bool:
    """Lets orders be drawn that come after the one of a state; returns False if none is."""
    fits = dataset_adapter.set_portable_state(probe, state.begin)
    if not state.is_begun:
        iter(part)
    return fits


def _may_keep_place(dataset: Any, batch_size: int | None) -> bool:
    """Whether TensorFlow may keep a place in the midst of a dataset in a few bytes."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    # Near the end of its data, an iterator does not know any more what was drawn for it.
    is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    return (
        (is_endless or skipping.is_drawn_early(dataset))
        and "cache" not in dataset_adapter.transformations_of(dataset)  # It keeps all of it.
        and dataset_adapter.num_shuffled(dataset) <= _MOST_SHUFFLED
        and dataset_adapter.num_bytes_held(dataset, batch_size) <= _MOST_BYTES
    )
