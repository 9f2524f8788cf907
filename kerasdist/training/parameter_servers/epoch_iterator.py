"""Divides the epochs of workers beside parameter servers into calls of some steps.

A step of asynchronous workers takes one batch of the program, and one of synchronous workers, which
is an update, takes several. Positions of steps are counted in steps, and those of batches in
batches.
"""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import keras_fit
from kerasdist.support.terminal import announce
from kerasdist.training.context import deployment, peers, running_call
from kerasdist.training.data import data_checks, input_functions
from kerasdist.training.epochs import data_states
from kerasdist.training.epochs.epoch_iterator import EpochIterator
from kerasdist.training.hooks import batch_hooks
from kerasdist.training.parameter_servers.data_source import Pass, WorkerDataSource

# How long a call takes where the number of its steps is left to us: long beside the millisecond or
# less in which the chief starts one, short for a person who watches.
_CALL_SECS = 0.1
_MOST_STEPS = 1000
# One call runs, and the others wait: the chief may be late.
_CALLS_PER_WORKER = 4


@dataclasses.dataclass(kw_only=True, slots=True)
class Call:
    """Some steps in a row: on one worker, or on all of them if they are synchronous.

    Attributes:
        position: Of the first step in the pass over the data, from 0.
        num_steps: How many; 1 where the chief reads.
        calls: Of the same epoch.
        batches: Those that the chief has read since the call before, by their positions in the
            pass; None where workers read.
        result: What the coordinator promises, and the attempt.
        num_taken: How many steps it had batches for, once these are made.
    """

    position: int
    num_steps: int
    calls: "Calls"
    batches: dict[int, Any] | None = None
    result: Any = None
    num_taken: int | None = None


def most_running(num_workers: int) -> int:
    """Returns how many calls are on their way at once, at most."""
    return _CALLS_PER_WORKER * num_workers


@dataclasses.dataclass(eq=False)
class Calls:
    """The calls of an epoch, from the first that runs to the last that is planned.

    Args:
        source: The pass over the data that this epoch is of.
        num_workers: How many calls run beside each other.
        first: Position of their first step in the pass, from 0.
        first_step: Which step of the epoch that is, from 0.
        begun: Batches that workers have begun before a checkpoint, and of which no step was made:
            by their positions, before that of the first step; each is None where workers read.
        num_steps: Steps of the epoch, at most; infinity takes them until the data ends.
        batches_per_step: How many batches a step takes; the last one of the pass may have fewer.
        num_batches: Those of the pass; infinity if nobody knows.
        num_ahead: How many batches the chief reads before the step that needs them.
        steps_per_call: How many steps a call has; None chooses.
        runs_ahead: Whether calls start before those before them have ended.
        clock: Seconds.

    Attributes:
        given: Positions of the batches that were given to workers and are in no step, between two
            calls of synchronous workers.
        num_done: Steps that have ended.
        has_ended: Whether the data turned out to end within the epoch.
    """

    source: Pass
    _: dataclasses.KW_ONLY
    num_workers: int
    first: int
    num_steps: float
    first_step: int = 0
    begun: dict[int, Any] = dataclasses.field(default_factory=dict)
    batches_per_step: int = 1
    num_batches: float = math.inf
    num_ahead: int = 0
    steps_per_call: int | None = None
    runs_ahead: bool = True
    clock: Callable[[], float] = time.perf_counter
    given: tuple[int, ...] = dataclasses.field(init=False)
    num_done: int = dataclasses.field(default=0, init=False)
    has_ended: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        self._max_running = most_running(self.num_workers) if self.runs_ahead else 1
        self._running: collections.deque[Call] = collections.deque()
        self._planned: collections.deque[Call] = collections.deque()
        self._num_planned = self._num_timed = 0
        self.given = tuple(self.begun)
        self._num_read = self.first * self.batches_per_step + len(self.given)
        self._started_at = 0.0

    @property
    def end_position(self) -> float:
        """The position behind the last batch of the epoch; infinity if nobody knows it yet."""
        return min((self.first + self.num_steps) * self.batches_per_step, self.num_batches)

    @property
    def num_done_of_epoch(self) -> int:
        """How many steps of the epoch have ended, with those that a resumed `fit` has not made."""
        return self.first_step + self.num_done

    def peek(self) -> Call | None:
        """Returns the call that ends next; None where the epoch is over."""
        if self._running:
            return self._running[0]
        if not self._planned:
            self._plan()
        return self._planned[0] if self._planned else None

    def take(self) -> Call | None:
        """Returns the next call to be started; None where there is no other, or enough run."""
        if len(self._running) >= self._max_running:
            return None
        if not self._planned:
            self._plan()
        if not self._planned:
            return None
        call = self._planned.popleft()
        self._running.append(call)
        return call

    def end(self, call: Call, num_taken: int, given: tuple[int, ...] = ()) -> None:
        """Notes that a call has ended, after some steps; see `given`."""
        self._running.remove(call)
        self.num_done += num_taken
        self.given = given
        running_call.note_steps(self.num_done_of_epoch, given)
        self.has_ended |= num_taken < call.num_steps
        if not self._started_at:
            self._started_at = self.clock()  # The first one was compiled.
        else:
            self._num_timed += num_taken

    def _plan(self) -> None:
        left = self.num_steps - self._num_planned
        if not left or self.has_ended:
            return
        position = self.first + self._num_planned
        batches = None
        if not self.source.data.is_on_workers:
            batches = self._read(position)
            self.has_ended = position * self.batches_per_step >= self.num_batches
            if self.has_ended:
                return
        call = Call(
            position=position,
            num_steps=1 if batches is not None else int(min(left, self._length(left))),
            calls=self,
            batches=batches,
        )
        self._num_planned += call.num_steps
        self._planned.append(call)

    def _read(self, position: int) -> dict[int, Any]:
        """Reads what the step at a position needs, and what workers may begin meanwhile."""
        batches, self.begun = self.begun, {}
        end = min((position + 1) * self.batches_per_step + self.num_ahead, self.end_position)
        while self._num_read < end:
            try:
                batches[self._num_read] = next(self.source)
            except StopIteration:
                self.num_batches = self._num_read
                break
            self._num_read += 1
        return batches

    def _length(self, left: float) -> int:
        """Returns how many steps the next call has."""
        if self.steps_per_call:
            return self.steps_per_call
        if not self._num_timed:
            return 1
        secs_per_step = (self.clock() - self._started_at) / self._num_timed
        num_steps = _CALL_SECS / (secs_per_step * self.num_workers)
        # The last calls are short, so that the workers end together.
        return int(max(1, min(round(num_steps), _MOST_STEPS, left // (2 * self.num_workers))))


class WorkerEpochIterator(EpochIterator):
    """Hands the user's data to `fit` and `evaluate` beside parameter servers, epoch by epoch.

    Args: those of `EpochIterator`; `batches_per_step` is how many batches of the program a step
        takes, which all workers then make together. None has each worker make steps of its own.

    Raises:
        ValueError: As there; or a function makes the data, and `steps_per_epoch` is not given.
    """

    def __init__(
        self,
        x: Any = None,
        *args: Any,
        class_weight: dict | None = None,
        distribute_strategy: tf.distribute.Strategy,
        batches_per_step: int | None = None,
        **kwargs: Any,
    ):
        self._is_together = batches_per_step is not None
        self._batches_per_step = batches_per_step or 1
        self._num_batches_of_pass = math.inf
        self._joins = False  # Whether the batches of a step are one element of the data.
        self._function = None
        self._data: WorkerDataSource | None = None
        if input_functions.is_function(x):
            x = functools.partial(_of_step, x, self._batches_per_step)
            self._function = x if class_weight is None else _weighed(x, class_weight)
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
        if self._is_together:
            running_call.note_dataset(self._own.dataset)
        if self._function is not None and not self.steps_per_epoch:
            raise ValueError(
                "`steps_per_epoch` (in `evaluate` `steps`, for validation `validation_steps`) is "
                "needed where a function makes the data of each worker: the workers of an epoch "
                "share its steps, and how many one of them could take does not say how many there "
                "are. Give the number, or the dataset itself."
            )

    def __next__(self) -> tuple[int, int, Any]:
        """Returns (first step, last step, calls) for the call that ends next."""
        return self.next_call()

    def _batch_size(self) -> int | None:
        size = super()._batch_size()
        return size and size * self._batches_per_step

    def _note_length(self) -> None:
        super()._note_length()
        if self._function is not None:
            self.num_batches_of_data = self._length = None
        num_batches = self.num_batches_of_data
        self._num_batches_of_pass = self._length or math.inf
        if num_batches:
            self.num_batches_of_data = math.ceil(num_batches / self._batches_per_step)
        if self._length:
            self._length = math.ceil(self._length / self._batches_per_step)

    def make_iterator(self) -> Iterator:
        """Begins a pass over the data."""
        if self._data is None:
            self._joins = self._is_together and running_call.joins_batches()
            self._data = WorkerDataSource(
                self._function or self._own.dataset,
                self._strategy,
                num_bytes=keras_fit.num_bytes(self.data_adapter),
                is_python=keras_fit.is_python(self.data_adapter),
                num_joined=self._batches_per_step if self._joins else None,
            )
            announce(f"Data: {self._data.description}.")
        return self._data.start()

    def __iter__(self) -> Iterator:
        """Begins an epoch; `calls` looks where the first one is to go on."""
        return super(EpochIterator, self).__iter__()

    def state(self, *, step: int, is_over: bool) -> None:
        """What the workers have read says what comes next."""

    def calls(self) -> Iterator[tuple[int, int, Any]]:
        """Yields (first step, last step, calls) for each call that ends."""
        place = running_call.take_data_place()
        if place is None:
            place = running_call.DataPlace(epoch=0, step=0)
        else:
            data_checks.warn_of_service(self._own.dataset, self._strategy, place.step)
            data_states.tell(self._strategy, data_states.ALL)
        for _ in range(place.epoch):
            for *_, calls in self._calls_of_epoch():
                call = calls.take()
                calls.end(call, self._num_steps_of(call))
        # Each worker can have one of them.
        is_for_workers = len(place.given) <= peers.num_workers(self._strategy)
        yield from self._calls_of_epoch(place.step, place.given if is_for_workers else ())

    def _calls_of_epoch(
        self, step: int = 0, given: tuple[int, ...] = ()
    ) -> Iterator[tuple[int, int, Any]]:
        # As in Keras, which counts in calls of `steps_per_execution` steps, and makes an iterator
        # more at the end of data of known length. Calls on workers have as many steps as they like.
        self.data_adapter.on_epoch_begin()
        if self.iterator is None or self.steps_per_epoch is None:
            self.iterator = self.make_iterator()
            self.num_seen = 0
        source: Any = self.iterator
        begun = self._take_begun(source, step, given)
        self.num_seen += step
        first = self.num_seen
        num_in_epoch = self.steps_per_epoch or self.num_batches_of_data or math.inf
        num_wanted = self._in_calls(num_in_epoch - step)
        num_left = self._in_calls((self.num_batches_of_data or math.inf) - first)
        last = first + min(num_wanted, num_left)
        num_steps = min(last, self._length or math.inf) - first
        calls = self._calls(source, first, num_steps, first_step=step, begun=begun)
        while call := calls.peek():
            # Where the data ends here, Keras asks how many steps it has seen.
            self.num_seen = first + self._in_calls(calls.num_done) + self.steps_per_execution
            yield step, step + max(call.num_steps, self.steps_per_execution) - 1, calls
            step += call.num_steps
        self.num_seen = first + self._in_calls(calls.num_done)
        if calls.has_ended and self.num_seen < last:
            self.num_seen += self.steps_per_execution
            with self.catch_stop_iteration():
                raise StopIteration
            return
        if num_left < num_wanted and self.steps_per_epoch:
            self.warn_of_end()
        if self.num_batches_of_data and self.num_seen >= self.num_batches_of_data:
            self.iterator = self.make_iterator()
            self.num_seen = 0
        self.data_adapter.on_epoch_end()

    def _num_steps_of(self, call: Call) -> int:
        """Returns how many steps a call had batches for, in a training that was interrupted."""
        source = call.calls.source
        if not source.data.is_strict or self._num_batches_of_pass < math.inf:
            return call.num_steps
        num_steps = math.ceil(source.num_batches / self._elements_per_step)
        return max(0, min(call.num_steps, num_steps - call.position))

    def _take_begun(self, source: Pass, step: int, given: tuple[int, ...]) -> dict[int, Any]:
        """Lets the chief read past some steps of an epoch, if it is the chief who reads.

        Returns:
            The batches of `DataPlace.given`, by their positions; None each where workers read.
        """
        begun: dict[int, Any] = dict.fromkeys(given)
        first = self.num_seen * self._elements_per_step
        num_batches = step * self._elements_per_step + len(given)
        if not source.data.is_on_workers:
            # In this order `zip` reads none too many.
            for position, batch in zip(range(first, first + num_batches), source, strict=False):
                if position in begun:
                    begun[position] = batch
        return begun

    @property
    def _elements_per_step(self) -> int:
        return 1 if self._joins else self._batches_per_step

    def _in_calls(self, num_steps: float) -> float:
        """Returns the steps of as many full calls of Keras' as hold so many steps."""
        if num_steps == math.inf:
            return num_steps
        return math.ceil(num_steps / self.steps_per_execution) * self.steps_per_execution

    def _calls(self, source: Pass, first: int, num_steps: float, **place: Any) -> Calls:
        per_step, is_shared = self._elements_per_step, self._is_together and not self._joins
        source.begin_at(first * per_step)
        num_workers = peers.num_workers(self._strategy)
        steps_per_call = deployment.remote_workers(self._strategy).steps_per_call
        if self.steps_per_execution > 1:
            steps_per_call = self.steps_per_execution
        is_one_by_one = self._is_together or num_workers == 1
        owners = batch_hooks.owners(running_call.callbacks()) if is_one_by_one else []
        if owners:
            steps_per_call = steps_per_call or 1
            announce(batch_hooks.describe(owners, steps_per_call))
        return Calls(
            source,
            num_workers=1 if self._is_together else num_workers,
            first=first,
            num_steps=num_steps,
            **place,
            batches_per_step=per_step,
            num_batches=self._length or math.inf if self._joins else self._num_batches_of_pass,
            num_ahead=max(num_workers - per_step, 0) if is_shared else 0,
            steps_per_call=steps_per_call,
            runs_ahead=not (self._is_together or owners),
        )


def _of_step(
    function: Callable, num_batches: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """Calls a function of the InputContext for a worker whose batch is one of several of a step."""
    of_worker = context.num_input_pipelines, context.input_pipeline_id
    return function(tf.distribute.InputContext(*of_worker, num_batches))


def _weighed(function: Callable, class_weight: dict) -> Callable:
    """Returns a function of the InputContext, with the weight of each example's class."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return function(context).map(keras_fit.class_weight_function(class_weight))

    return make
