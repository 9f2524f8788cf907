"""All that kerasdist remembers outside of the objects that it makes, with the reason of each.

Of the process, of each thread, of each model, and of each of a model's parts. Nothing else may be
remembered by a module, see `tests/test_architecture.py`.

    memory.PROCESS.said.add(line)
    memory.THREAD.calls
    memory.of_model(model).told_states
"""

import collections
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    from kerasdist.cluster import Cluster
    from kerasdist.lifetime.termination import Termination
    from kerasdist.status.task_status import TaskStatus
    from kerasdist.training.context.running_call import RunningCall
    from kerasdist.training.replica.draws import Draws
    from kerasdist.training.replica.replicas import Replica


@dataclasses.dataclass(kw_only=True)
class Process:
    """What is one for the whole process.

    Attributes:
        said: Lines and warnings that are given once. Python's own list of warnings is emptied when
            TensorFlow is imported.
        open_stdout: The stdout on which a progress bar does not end its line.
        cluster: The cluster of the strategy that was made; None before.
        status: What others may know of the process, while threads of its own tell them.
        met: The cluster of the processes that have met, by what this one was told: they do it once.
        lock: Held while functions and classes of others are replaced.
        replacements: What `kerasdist.undo` calls, the last one first: each gives Keras, TensorFlow
            or tf_keras back what stands replaced. Empty where nothing is.
        originals: What some thread replaces, by (owner, name): what it was, what gives it back, and
            how often it is.
        joined: The strategy with which the process has joined its cluster, which it can only once,
            and the arguments of `make_strategy`.
        strategies: Those of this machine, by their devices: a second one would be another one.
        latest_strategy: What `make_strategy` has returned last.
        collective_keys: No two strategies may have the same.
        processes_with_tensorflow: The ids of those whose threads of TensorFlow were there: a fork
            inherits the list, and no threads.
        terminations: Those that note SIGTERM, the last one first to be put back.
        num_barriers: How often tasks have met, by the name of the barrier.
        num_written: How often the chief has written, by the line and the file.
        data_generations: No two data sources of workers may have the same.
        last_event_steps: The last step in each folder of event files that was looked through, or
            was written since.
        last_trained: The model of the last `fit` that has ended, by the folder of its checkpoints.
        draws: The one `Draws` that is entered, if any: it replaces functions of TensorFlow.
        workers_differ: The error after which no variable of these workers is right.
    """

    said: set[str] = dataclasses.field(default_factory=set)
    open_stdout: Any = None
    cluster: "Cluster | None" = None
    status: "TaskStatus | None" = None
    met: dict[Hashable, "Cluster"] = dataclasses.field(default_factory=dict)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    replacements: list[Callable[[], object]] = dataclasses.field(default_factory=list)
    originals: dict[tuple[Any, str], tuple[Any, Callable[[], None], int]] = dataclasses.field(
        default_factory=dict
    )
    joined: tuple[Any, dict[str, Any]] | None = None
    strategies: dict[tuple[str, ...], Any] = dataclasses.field(default_factory=dict)
    latest_strategy: Any = None
    collective_keys: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.count(1000, 1000)
    )
    processes_with_tensorflow: set[int] = dataclasses.field(default_factory=set)
    terminations: "list[Termination]" = dataclasses.field(default_factory=list)
    num_barriers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    num_written: collections.Counter[Hashable] = dataclasses.field(
        default_factory=collections.Counter
    )
    data_generations: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    last_event_steps: dict[str, int] = dataclasses.field(default_factory=dict)
    last_trained: dict[str, weakref.ref] = dataclasses.field(default_factory=dict)
    draws: "Draws | None" = None
    workers_differ: ValueError | None = None

    def say_once(self, text: str) -> bool:
        """Whether a text is to be said, which it is once."""
        is_new = text not in self.said
        self.said.add(text)
        return is_new


class Thread(threading.local):
    """What each thread has: two of them may train, and each replica is traced in one.

    Attributes:
        calls: The calls of `fit`, `evaluate` and `predict` that run, the outermost first.
        replica: That whose step is traced.
        looks_for_function: Whether a model's `make_train_function` runs.
        found_function: What of ours that has made.
        writes_file: Whether a method of Keras writes a file, as it was told to.
        replaced: What stands in the place of functions of TensorFlow and Keras; those of a replica
            inherit it.
        num_draws: Counts the random numbers of a trial.
        num_generators_kept: How often it is in `randomness.generators_kept`.
        draws_as_ever: Whether first values of weights are drawn, which are none of an example's.
    """

    def __init__(self):
        self.calls: tuple[RunningCall, ...] = ()
        self.replica: Replica | None = None
        self.looks_for_function, self.found_function = False, None
        self.writes_file = False
        self.replaced: dict[tuple, Callable] = {}
        self.num_draws = itertools.count()
        self.num_generators_kept = 0
        self.draws_as_ever = False


@dataclasses.dataclass(kw_only=True, slots=True)
class ModelNotes:
    """What is remembered of a model: Keras tracks its attributes, and saves some.

    Attributes:
        unused_layers: The ids of the layers that no call of it builds.
        counts_whole_batches: Whether every replica counts the whole batch, in all metrics.
        told_states: The states of which was said that replicas assign others.
        are_weights_told: Whether that was said of weights.
        ended_fits: By folder of checkpoints, each `fit` that has ended: what `histories.read` says
            of it, and the step of its last checkpoint. A script that is started again makes the
            same ones in the same order.
        auto_xla: Why `jit_compile="auto"` has switched XLA on or off; None where it was not asked.
    """

    unused_layers: frozenset[int] = frozenset()
    counts_whole_batches: bool = False
    told_states: set[str] = dataclasses.field(default_factory=set)
    are_weights_told: bool = False
    ended_fits: dict[str, list[tuple[dict, int]]] = dataclasses.field(default_factory=dict)
    auto_xla: str | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class PartNotes:
    """What is remembered of a part of a program that may belong to several models, or to none.

    Attributes:
        sees_all_examples: Of compiled losses: whether each replica computes them of all examples.
        is_updated_with_all: Of a metric: whether a step has updated it with all examples.
        is_called: Of an optimizer: whether a step has called it.
        is_scaled_unbuilt: Of an optimizer: whether it scales a loss in a trace before it is built,
            which keeps that scale.
        made_in_trace: Of an optimizer: what must live as long as it does.
        updates_before: Of an optimizer of a layer: those that it had made when first seen. It may
            come with a model that was trained before, and that nobody trains any more.
        is_state_told: Of a callback: whether was said that its state is left out.
        is_used: Of a strategy: whether something was created in its scope.
        sum_over_workers: Of a strategy: its compiled sum.
        seed_of_all: Of a graph that is traced for one of several workers: the seed of all.
        rows_of_workers: Of a dataset: what one of several workers prepares of it, by their number
            and its index.
    """

    sees_all_examples: bool = False
    is_updated_with_all: bool = False
    is_called: bool = False
    is_scaled_unbuilt: bool = False
    made_in_trace: "tf.Variable | None" = None
    updates_before: int | None = None
    is_state_told: bool = False
    is_used: bool = False
    sum_over_workers: Any = None
    seed_of_all: int | None = None
    rows_of_workers: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict)


PROCESS = Process()
THREAD = Thread()
# Weak: nothing here keeps a model alive.
_of_models: weakref.WeakKeyDictionary[Any, ModelNotes] = weakref.WeakKeyDictionary()
_of_parts: weakref.WeakKeyDictionary[Any, PartNotes] = weakref.WeakKeyDictionary()


def of_model(model: Any) -> ModelNotes:
    """Returns what is remembered of a model, for as long as it lives."""
    return _of_models.setdefault(model, ModelNotes())


def of_part(part: Any) -> PartNotes:
    """Returns what is remembered of a part of a program, such as a loss, a graph or a dataset."""
    return _of_parts.setdefault(part, PartNotes())


def parts_with(is_meant: Callable[[PartNotes], bool]) -> list[Any]:
    """Returns the parts that live and of which something is remembered."""
    return [part for part, notes in list(_of_parts.items()) if is_meant(notes)]
