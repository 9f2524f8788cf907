"""The call of `fit`, `evaluate` or `predict` that runs, for whoever must know of it.

The routes enter it. A call belongs to its thread, and calls nest: `fit` evaluates.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from kerasdist.support import memory

if TYPE_CHECKING:
    import keras


def _no_state(*, step: int, is_over: bool) -> None:
    """The state of data that was not given yet."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataState:
    """Where the iterator is that the next step of a `fit` takes its batches from.

    Attributes:
        num_iterators: How many were made before it.
        num_steps: Steps that have had its batches.
        is_begun: Whether it was made already; `begin` is that of the one before it otherwise.
        num_parts: Workers that read parts of their own; 1 if all read, and prepare, the same.
        texts: A number that differs for other paths that the data was given.
        next_size: The examples of its next batch, where workers read parts of their own.
        begin: What tf.data keeps of it before its first batch; None where that is not known.
        now: What tf.data keeps of it at this place: one that all workers share, or one for each;
            empty where that is too much, or not known.
    """

    num_iterators: int
    num_parts: int
    texts: int
    num_steps: int = 0
    is_begun: bool = False
    next_size: int | None = None
    begin: bytes | None = None
    now: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DataPlace:
    """A place in the data of a `fit`.

    Attributes:
        epoch: How many epochs are over.
        step: How many steps of the next one are.
        given: Positions, in the pass over the data, of the batches that synchronous workers had
            before others that are in these steps.
        state: Of the data; None where only all that was read says what comes next.
    """

    epoch: int
    step: int
    given: tuple[int, ...] = ()
    state: DataState | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class RunningCall:
    """A call that runs.

    Attributes:
        method: "fit", "evaluate" or "predict".
        model: Whose.
        update_callbacks: Those of its callbacks that take part in the update, in list order.
        callbacks: All its callbacks, as they were given.
        is_resumed: Whether a Checkpoint has brought it to where an earlier one was.
        resumed_time: When that was saved; None if it is not resumed, or nothing is left to train.
        resume_at: Where the data is to begin; None for the first epoch.
        keeps_data_state: Whether a callback asks for `data_state`, which takes time to keep.
        data_state: Returns the state of its first data, which `fit` trains with; see
            `EpochIterator.state`.
        batch_size: The examples of a batch of the data that was given last, where it is known.
        num_batches: Those of that data, where it is known.
        num_steps_of_epoch: Steps of the epoch that its data has had batches for so far, with those
            that a resumed `fit` does not make. Keras reports more after a last call that has fewer
            than `steps_per_execution`. None before the first.
        given: That of `DataPlace` after these steps.
        is_recorded: Whether a profiler records its steps at this moment.
        num_left_out: Times that steps took longer than they do: recorded by a profiler, or compiled
            once more. Rates begin anew after it.
        exits: What is to be undone when it ends, also after an error.
        element_spec: Shapes and dtypes of a batch, from when Keras looks at the data on; for models
            whose train_step makes their variables.
        dataset: Of the batches that synchronous workers over parameter servers train with, before
            anything is read; None elsewhere.
        joins_batches: Whether one worker computes each of their updates, from its batches joined.
    """

    method: str
    model: Any
    update_callbacks: tuple = ()
    callbacks: tuple = ()
    is_resumed: bool = False
    resumed_time: float | None = None
    resume_at: DataPlace | None = None
    keeps_data_state: bool = False
    data_state: Callable[..., DataState | None] = _no_state
    batch_size: int | None = None
    num_batches: int | None = None
    num_steps_of_epoch: int | None = None
    given: tuple[int, ...] = ()
    is_recorded: bool = False
    num_left_out: int = 0
    exits: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    element_spec: Any = None
    dataset: Any = None
    joins_batches: bool = False


@contextlib.contextmanager
def entered(method: str, model: "keras.Model", **known: Any) -> Generator[RunningCall]:
    """Makes a call the current one of this thread.

    Args:
        method: See `RunningCall`.
        model: See `RunningCall`.
        **known: Further fields of it.
    """
    call = RunningCall(method=method, model=model, **known)
    outer = memory.THREAD.calls
    memory.THREAD.calls = (*outer, call)
    try:
        with call.exits:
            yield call
    finally:
        memory.THREAD.calls = outer


def reads_whole_data() -> bool:
    """Whether every worker reads all data: `predict` does."""
    return bool(memory.THREAD.calls) and memory.THREAD.calls[-1].method == "predict"


def is_fit() -> bool:
    """Whether the innermost call that runs is `fit`."""
    return bool(memory.THREAD.calls) and memory.THREAD.calls[-1].method == "fit"


def is_first_data() -> bool:
    """Whether data that is made ready now is the first of the innermost call: that of training."""
    return bool(memory.THREAD.calls) and memory.THREAD.calls[-1].data_state is _no_state


def training_of(model: "keras.Model") -> RunningCall | None:
    """Returns the `fit` of a model that runs, or None."""
    for call in memory.THREAD.calls:
        if call.method == "fit" and call.model is model:
            return call
    return None


def model() -> Any:
    """Returns the model of the innermost call that runs, or None."""
    return memory.THREAD.calls[-1].model if memory.THREAD.calls else None


def callbacks() -> tuple:
    """Returns all callbacks of the innermost call that runs, as they were given to `fit`."""
    return memory.THREAD.calls[-1].callbacks if memory.THREAD.calls else ()


def note_data(*, batch_size: int | None, num_batches: int | None, state: Callable) -> None:
    """Notes of the data of the call that runs what `RunningCall` says of it."""
    if memory.THREAD.calls:
        call = memory.THREAD.calls[-1]
        call.batch_size, call.num_batches = batch_size, num_batches
        if is_first_data():  # `fit` makes the data of its validation ready later.
            call.data_state = state


def note_dataset(dataset: Any) -> None:
    """Notes the dataset of synchronous workers over parameter servers; see `RunningCall`."""
    if memory.THREAD.calls:
        memory.THREAD.calls[-1].dataset = dataset


def joins_batches() -> bool:
    """Whether one worker computes each update of the call that runs; see `RunningCall`."""
    return bool(memory.THREAD.calls) and memory.THREAD.calls[-1].joins_batches


def note_steps(num_steps_of_epoch: int, given: tuple[int, ...] = ()) -> None:
    """Notes how far the epoch of the call that runs is; see `RunningCall`."""
    if memory.THREAD.calls:
        call = memory.THREAD.calls[-1]
        call.num_steps_of_epoch, call.given = num_steps_of_epoch, given


def num_steps_of_epoch(model: "keras.Model", batch: int) -> int:
    """Returns how many steps of its epoch the `fit` of a model has made at `on_train_batch_end`.

    Args:
        model: Whose `fit` runs.
        batch: What Keras reports there, from 0, which counts where nothing is noted.
    """
    training = training_of(model)
    known = training.num_steps_of_epoch if training else None
    return batch + 1 if known is None else known


def keeps_data_state() -> bool:
    """Whether a callback of the call that runs asks for the state of its data."""
    return bool(memory.THREAD.calls) and memory.THREAD.calls[-1].keeps_data_state


def take_data_place() -> DataPlace | None:
    """Returns where the data of the call that begins is to begin, once; see `resume_at`."""
    if not memory.THREAD.calls:
        return None
    place, memory.THREAD.calls[-1].resume_at = memory.THREAD.calls[-1].resume_at, None
    return place


def set_recorded(model: "keras.Model", is_recorded: bool) -> None:
    """Notes that a profiler begins, or ends, to record the `fit` of a model that runs."""
    training = training_of(model)
    if training is not None:
        training.is_recorded = is_recorded
        training.num_left_out += is_recorded


def leave_out_of_rates(model: "keras.Model") -> None:
    """Notes that the next step of the `fit` of a model that runs is compiled once more."""
    training = training_of(model)
    if training is not None:
        training.num_left_out += 1


def at_end(model: "keras.Model", act: Callable[[], None]) -> None:
    """Calls `act` when the `fit` of a model that runs has ended, also after an error."""
    training = training_of(model)
    if training is not None:
        training.exits.callback(act)


def update_callbacks_of(model: "keras.Model") -> tuple:
    """Returns the update callbacks of the `fit` of a model that runs; none where none runs."""
    training = training_of(model)
    return training.update_callbacks if training else ()
