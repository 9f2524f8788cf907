"""Hands the user's data to `fit`, `evaluate` and `predict`, epoch by epoch."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import dataset_adapter, keras_fit
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.data import data_checks, input_functions
from kerasdist.training.epochs import data_states
from kerasdist.training.epochs.data_states import DataStates
from kerasdist.training.epochs.global_batches import GlobalBatches
from kerasdist.training.epochs.own_data import OwnData


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
        of_keras, ours = (None, class_weight) if is_distributed else (class_weight, None)
        super().__init__(x, *args, class_weight=of_keras, **kwargs)
        dataset = self.data_adapter.get_tf_dataset()
        if keras_fit.is_generator(self.data_adapter) and peers.count(distribute_strategy) > 1:
            # Prefetched data is lost with the iterator: more of it on one worker than on others.
            dataset = dataset_adapter.without_prefetch(dataset)
        self._own = OwnData(
            dataset, distribute_strategy, is_function=is_function, class_weight=ours
        )
        # TensorFlow counts the batches of a replica for some distributed datasets: not to be used.
        self._is_counted = not is_distributed and self._own.division.of_files is None
        if not running_call.reads_whole_data():  # One worker alone may predict.
            has_end = not self.steps_per_epoch and self._is_counted
            length = self.data_adapter.num_batches if has_end else None
            data_checks.check_equal_num_batches(distribute_strategy, length)
        # A function returns the batches of a worker, which change with the number of workers.
        size = None if is_function or is_distributed else self._batch_size()
        self._states = DataStates(self._own, size)
        self._note_length()
        num_batches = self.num_batches_of_data
        running_call.note_data(batch_size=size, num_batches=num_batches, state=self.state)

    def _batch_size(self) -> int | None:
        size = keras_fit.batch_size_of(self.data_adapter)
        return dataset_adapter.batch_size_of(self._own.dataset) if size is None else size

    @property
    def element_spec(self):
        """Shapes and dtypes of a batch, with an open batch axis; nothing is read to find them."""
        return dataset_adapter.batch_spec(self._own.dataset.element_spec)

    def reset(self):
        """Starts anew at the first batch."""
        super().reset()
        self._note_length()

    def _note_length(self) -> None:
        # Keras has read it before the data's `on_epoch_end`, which may change it.
        if not self._is_counted:
            self.num_batches_of_data = None
        # A `__len__` of Python's is only the number of steps: there may be less data, or more.
        is_promised = not keras_fit.is_python(self.data_adapter)
        self._length = self.num_batches_of_data or None if is_promised else None

    def make_iterator(self) -> Iterator:
        """Returns the iterator of the state that training goes on with, or a new one."""
        return self._own.take()

    def __iter__(self):
        """Begins an epoch; the first one where the `fit` is to go on."""
        place = running_call.take_data_place()
        if place is None:
            return super().__iter__()
        data_checks.warn_of_service(self._own.dataset, self._strategy, place.step)
        if place.state is not None and self._stands_at(place, place.state):
            return self._pass_over(place.step, reads=False)
        data_states.tell(self._strategy, data_states.ALL)
        for _ in range(place.epoch):
            self._pass_over(math.inf)
        return self._pass_over(place.step)

    def _stands_at(self, place: running_call.DataPlace, state: running_call.DataState) -> bool:
        """Whether the data is known from a place on, and comes next; all is read again if not."""
        if self.steps_per_epoch and 0 < (self._length or 0) <= state.num_steps:
            # The data is as long as before: Keras begins it anew.
            number = state.num_iterators + 1
            state = dataclasses.replace(
                state, num_iterators=number, num_steps=0, is_begun=False, now=()
            )
        num_read = state.num_iterators
        if self.num_batches_of_data and not self.steps_per_epoch:
            num_read = (num_read + 1) // 2  # Keras makes another one at the end of an epoch.
        is_at_end = bool(self._length) and state.num_steps >= self._length
        source = self._states.source_at(state, num_read=num_read, is_at_end=is_at_end)
        if source is None:
            return False
        # What it has had for epochs before this one.
        source.progress.num_taken = max(0, state.num_steps - place.step)
        if self.steps_per_epoch:
            self.iterator, self.num_seen = source, source.progress.num_taken
        else:
            self._own.ready = source
        return True

    def _pass_over(self, num_steps: float, *, reads: bool = True):
        """Begins an epoch and passes over so many of its steps, or all; returns its iterator."""
        iterator = super().__iter__()
        num_passed = 0
        while num_passed < num_steps and (call := next(iterator, None)):
            *_, batches = call
            with self.catch_stop_iteration():
                if reads:
                    batches.answer(*self._own.read(batches.source, batches.num_steps))
                else:
                    num_left = min(num_steps, self.num_batches_of_data or math.inf) - num_passed
                    batches.answer(int(min(batches.num_steps, num_left)), batches.source.next_size)
            if not batches.num_taken:
                self.end_epoch()  # As `fit` does where the data ends.
                break
            num_passed += batches.num_taken
        return iterator

    def state(self, *, step: int, is_over: bool) -> running_call.DataState | None:
        """Returns the state of the data; None where only all that was read says what comes next.

        Called by all workers, which have the same or none.

        Args:
            step: Steps of the present epoch that were made. With 0 an epoch is about to begin: its
                iterator is then made now.
            is_over: Whether the `fit` is.
        """
        goes_on = bool(step or (self.steps_per_epoch and self.iterator is not None))
        return self._states.now(goes_on=goes_on, is_over=is_over)

    def __next__(self) -> tuple[int, int, Any]:
        """Returns (first step, last step, batches) for a call of the step function."""
        begin_step, end_step, source = self.next_call()
        num_steps = self.steps_per_execution
        if self._length is not None:
            num_steps = min(num_steps, self._length - (self.num_seen - num_steps))
        is_exact = self._length is not None
        batches = GlobalBatches(
            source=source, first_step=begin_step, num_steps=num_steps, is_exact=is_exact
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
