"""The epochs of asynchronous workers: which steps there are, and who runs them."""

import collections
import dataclasses
import sys
import time
from typing import Any

import keras
import tensorflow as tf

from kerasdist.training import keras_adapter
from kerasdist.training.epoch_iterator import EpochIterator
from kerasdist.training.worker_data import WorkerData

# Of a call where the number of its steps is left to us: long beside the millisecond or less in
# which the chief starts one, short for a person who watches.
_CALL_SECS = 0.1
_MOST_STEPS = 1000
# One that runs, and some that wait: the chief may be late.
_CALLS_PER_WORKER = 4


@dataclasses.dataclass(kw_only=True, slots=True)
class Call:
    """Some steps in a row, on one worker.

    Attributes:
        position: Of their first batch in the data, from 0, over all epochs.
        num_steps: How many.
        calls: Of the same epoch.
        batch: The batch of the one step, where the chief reads it; None where the worker does.
        result: What the coordinator promises, once it is scheduled.
    """

    position: int
    num_steps: int
    calls: "Calls"
    batch: Any = None
    result: Any = None


class Calls:
    """The calls of an epoch, from the first that runs to the last that is planned.

    Args:
        data: Where the workers read.
        num_workers: Workers.
        first: Position of the first batch of the epoch, from 0, over all epochs.
        num_steps: Steps of the epoch.
        steps_per_call: How many steps a call has; None chooses.
        batches: The chief's iterator over batches, where it reads them; else None.
    """

    def __init__(self, data, *, num_workers, first, num_steps, steps_per_call=None, batches=None):
        self.data: WorkerData = data
        self.running = collections.deque()
        self.max_running = _CALLS_PER_WORKER * num_workers
        self._num_workers = num_workers
        self._first = first
        self._num_steps = num_steps
        self._steps_per_call = steps_per_call
        self._batches = batches
        self._num_planned = 0
        self._planned: collections.deque[Call] = collections.deque()
        self._num_done = 0
        self._started_at = 0.0

    def peek(self) -> Call | None:
        """Returns the call that ends next; None where the epoch is over."""
        if self.running:
            return self.running[0]
        if not self._planned:
            self._plan()
        return self._planned[0] if self._planned else None

    def take(self) -> Call | None:
        """Returns the next call to be started; None where there is no other, or enough run."""
        if len(self.running) >= self.max_running:
            return None
        if not self._planned:
            self._plan()
        if not self._planned:
            return None
        call = self._planned.popleft()
        self.running.append(call)
        return call

    def end(self, call: Call) -> None:
        """Notes that a call has ended."""
        self.running.remove(call)
        if not self._started_at:
            self._started_at = time.perf_counter()  # The first one was compiled.
        else:
            self._num_done += call.num_steps

    def _plan(self):
        left = self._num_steps - self._num_planned
        if not left:
            return
        batch = None if self._batches is None else next(self._batches)
        call = Call(
            position=self._first + self._num_planned,
            num_steps=1 if batch is not None else min(left, self._length(left)),
            calls=self,
            batch=batch,
        )
        self._num_planned += call.num_steps
        self._planned.append(call)

    def _length(self, left) -> int:
        """Returns how many steps the next call has."""
        if self._steps_per_call:
            return self._steps_per_call
        if not self._num_done:
            return 1
        secs_per_step = (time.perf_counter() - self._started_at) / self._num_done
        num_steps = _CALL_SECS / (secs_per_step * self._num_workers)
        # The last calls are short, so that the workers end together.
        return max(1, min(round(num_steps), _MOST_STEPS, left // (2 * self._num_workers)))


class WorkerEpochs(EpochIterator):
    """Hands the user's data to `fit` and `evaluate` over asynchronous workers, epoch by epoch.

    Args: those of `EpochIterator`; `x` can be a function of `tf.distribute.InputContext` that
        returns the dataset of one worker.

    Raises:
        ValueError: As there; or neither the length of the data nor `steps_per_epoch` is known.
    """

    def __init__(self, x=None, *args, class_weight=None, distribute_strategy, **kwargs):
        self._make_dataset = None
        self._data: WorkerData | None = None
        self._first = 0
        num_workers = distribute_strategy.served_cluster.num_workers
        if _is_function(x):
            self._make_dataset = _checked(x, class_weight)
            # For the shapes; how much data one worker has does not say how many steps there are.
            x = self._make_dataset(tf.distribute.InputContext(num_workers, 0, 1)).repeat()
            class_weight = None
        elif isinstance(x, tf.distribute.DistributedDataset):
            raise ValueError(
                "With parameter servers the data is the dataset itself, or a function of "
                "tf.distribute.InputContext that returns one. Received: a distributed dataset. "
                "Leave out `experimental_distribute_dataset` and the like."
            )
        super().__init__(
            x,
            *args,
            class_weight=class_weight,
            distribute_strategy=distribute_strategy,
            **kwargs,
        )
        if self._num_steps() is None:
            raise ValueError(
                "`steps_per_epoch` (in `evaluate` `steps`, for validation `validation_steps`) is "
                "needed: the workers of an epoch share its steps, and the length of this data is "
                f"not known. Received: steps_per_epoch={self.steps_per_epoch}, and data of "
                f"cardinality {int(self._dataset.cardinality())} (-1 never ends, -2 is unknown). "
                "Give the number, or tell it with `tf.data.experimental.assert_cardinality`."
            )

    @property
    def num_batches(self) -> int | None:
        return self._num_steps()

    def reset(self):
        super().reset()
        # The workers stand at the first batch again where they have read whole passes.
        if self._length is None or self._first % self._length:
            self._data = None

    def __iter__(self):
        """Yields (first step, last step, calls) for every call that ends."""
        self._adapter.on_epoch_begin()
        calls = self._calls()
        self._step = 0
        while call := calls.peek():
            yield self._step, self._step + call.num_steps - 1, calls
            self._step += call.num_steps
        self._first += self._step
        self._adapter.on_epoch_end()

    def _num_steps(self) -> int | None:
        if self.steps_per_epoch:
            return self.steps_per_epoch
        return None if self._make_dataset else self._length

    def _calls(self) -> Calls:
        if self._data is None:
            self._data = self._open_on_workers()
            self._first = 0
        reads = self._data.iterators is None
        return Calls(
            self._data,
            num_workers=self._strategy.served_cluster.num_workers,
            first=self._first,
            num_steps=self._num_steps(),
            steps_per_call=(
                self.steps_per_execution
                if self.steps_per_execution > 1
                else self._strategy.steps_per_call
            ),
            batches=self._batches_of_chief() if reads else None,
        )

    def _open_on_workers(self) -> WorkerData:
        data = WorkerData(
            self._make_dataset or self._dataset,
            self._strategy,
            num_bytes=keras_adapter.num_bytes(self._adapter),
            is_python=keras_adapter.is_python(self._adapter),
        )
        _announce(data.description)
        return data

    def _batches_of_chief(self):
        source = self._source
        if source is None or self.steps_per_epoch is None:
            source = self._start()
        while True:
            yield from source.iterator
            source = self._start()


def _is_function(x) -> bool:
    return callable(x) and not isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))


def _checked(function, class_weight):
    """Returns a function of the InputContext that says so where it returns no dataset."""

    def make(context):
        dataset = function(context)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "The function given as data must return a tf.data.Dataset of batches. Received: "
                f"{dataset!r}."
            )
        if class_weight is not None:
            dataset = dataset.map(keras_adapter.class_weight_function(class_weight))
        return dataset

    return make


_announced: set[str] = set()


def _announce(description):
    if description not in _announced:
        _announced.add(description)
        print(f"Data: {description}.", file=sys.stderr, flush=True)
