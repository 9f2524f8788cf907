"""The workers that make each step together: how many, which is this, and sums over all of them.

Peers run the same program in lockstep, and whatever adds up over them must be called by all of
them, in the same order: a worker that does not call leaves the others waiting. Workers beside
parameter servers are no peers; the chief is alone there.
"""

import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from kerasdist.cluster import Cluster, Task
from kerasdist.private import strategy_adapter
from kerasdist.support import memory
from kerasdist.training.context import deployment

if TYPE_CHECKING:
    from kerasdist.lifetime.step_watch import StepWatch

_MOST_WORDS = 1 << 20  # Of a message that is sent to all.
# What TensorFlow says where the messages of workers are not of one kind or shape.
_MET_ANOTHER = re.compile(r"Collective instance \d+ expected|Shape mismatch in the collective")


def cluster_of(strategy: object) -> Cluster:
    """Returns the cluster of the peers, a local one beside parameter servers."""
    found = deployment.of(strategy)
    return Cluster.local() if found.has_remote_variables else found.cluster


def task_of(strategy: object) -> str | None:
    """Returns the name of this task, such as "worker 1" or "chief 0"; None without a cluster."""
    cluster = deployment.of(strategy).cluster
    return None if cluster.is_local else str(cluster.task)


def num_workers(strategy: object) -> int:
    """Returns how many workers train: peers, or those beside parameter servers."""
    return deployment.of(strategy).cluster.num_workers


def count(strategy: object) -> int:
    """Returns the number of peers: 1 on one machine, and beside parameter servers."""
    return cluster_of(strategy).num_workers


def index_of(strategy: object) -> int:
    """Returns the position of this worker among all, from 0; the chief is 0."""
    return cluster_of(strategy).worker_index


def tasks(strategy: object) -> list[str]:
    """Returns the names of the peers of a cluster, in their order: "chief 0", "worker 0"."""
    return [str(task) for task in _in_order(cluster_of(strategy))]


def is_first_on_machine(strategy: object) -> bool:
    """Whether no other peer with the host of this one comes before it."""
    cluster = cluster_of(strategy)
    if cluster.is_local:
        return True
    hosts = {task: cluster.addresses[task].rpartition(":")[0] for task in _in_order(cluster)}
    return cluster.task == next(task for task in hosts if hosts[task] == hosts[cluster.task])


def _in_order(cluster: Cluster) -> list[Task]:
    among = [task for task in cluster.addresses if task.job in ("chief", "worker")]
    return sorted(among, key=lambda task: (task.job != "chief", task.index))


def is_chief(strategy: object) -> bool:
    """Whether this process is the one that writes files and shows progress."""
    return cluster_of(strategy).is_chief


def local_replicas(strategy: Any) -> range:
    """Returns the positions, among all replicas, of those on this worker."""
    num_local = num_replicas(strategy) // count(strategy)
    first = index_of(strategy) * num_local
    return range(first, first + num_local)


def num_replicas(strategy: Any) -> int:
    """Returns the number of replicas of all workers, also in a step that sees one."""
    return strategy_adapter.num_replicas(strategy)


def replica_id() -> int:
    """Returns the position of the replica that is traced, among all replicas."""
    return strategy_adapter.replica_id()


def on_replicas(strategy: tf.distribute.Strategy, function: Callable, args: tuple = ()):
    """Calls a function on each replica, as `strategy.run` does if no loop of the user's calls it.

    Args:
        strategy: The strategy.
        function: What a replica does.
        args: Its arguments.
    """
    return strategy_adapter.run(strategy, function, args)


def end_of_epoch(strategy: object) -> contextlib.AbstractContextManager:
    """Returns a context for the messages of all workers at the end of an epoch of `fit`."""
    watch = deployment.of(strategy).step_watch
    return watch.end_of_epoch() if watch else contextlib.nullcontext()


@contextlib.contextmanager
def watched(strategy: object) -> Generator[None]:
    """Lets a worker that is late, or does something else, be named while what is inside runs.

    Raises:
        RuntimeError: Another worker does something else.
    """
    watch = deployment.of(strategy).step_watch
    with watch.active() if watch else contextlib.nullcontext(), _met_another_told(watch):
        yield


@contextlib.contextmanager
def _met_another_told(watch: "StepWatch | None") -> Generator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        met = _MET_ANOTHER.search(error.message)
        if not met:
            raise
        if watch and (told := watch.describe_early_end()):
            raise RuntimeError(f"{told[0].upper()}{told[1:]}") from None
        raise RuntimeError(
            "Another worker does something else at this place of the program, or adds up a tensor "
            "of another shape. All workers must call `fit` and `evaluate`, with the same arguments "
            "and in the same order, also in callbacks; `predict` may be called by one of them "
            "alone. An `all_reduce` in a train_step needs one shape on all replicas. TensorFlow "
            f"says: {error.message[met.start() :].splitlines()[0]}"
        ) from None  # Pages of a graph that say nothing else.


def sum_over(strategy: object, numbers: npt.ArrayLike) -> np.ndarray:
    """Returns numbers added up over the workers: float64, of the same shape on every worker.

    Args:
        strategy: A strategy of ours.
        numbers: Array of this worker's numbers.
    """
    numbers = np.asarray(numbers, "float64")
    if count(strategy) == 1:
        return numbers
    notes = memory.of_part(strategy)
    if notes.sum_over_workers is None:
        # They have one rank, so that two traces are enough for all shapes.
        notes.sum_over_workers = tf.function(sum_in_graph, autograph=False, reduce_retracing=True)
    total = notes.sum_over_workers(strategy, tf.constant(numbers.ravel()))
    return total.numpy().reshape(numbers.shape)


def gather(strategy: object, row: np.ndarray) -> np.ndarray:
    """Returns the rows of all workers: float64 [workers, size]; all of them must call it.

    Args:
        strategy: A strategy of ours.
        row: Numbers of this worker [size].
    """
    rows = np.zeros((count(strategy), len(row)))
    rows[index_of(strategy)] = row
    return sum_over(strategy, rows)


def send(strategy: object, content: bytes, *, source: int) -> bytes:
    """Returns the content of one worker on all of them; all must call it.

    Args:
        strategy: A strategy of ours.
        content: That of this worker; only that of `source` counts.
        source: The position of the worker that sends.
    """
    is_source = index_of(strategy) == source
    size = int(gather(strategy, np.array([len(content)]))[source, 0])
    padded = content.ljust(-(-size // 4) * 4, b"\0") if is_source else bytes(-(-size // 4) * 4)
    words, received = np.frombuffer(padded, np.uint32), []
    for start in range(0, len(words), _MOST_WORDS):  # A float64 holds each of them exactly.
        received.append(sum_over(strategy, words[start : start + _MOST_WORDS]).astype(np.uint32))
    return b"".join(each.tobytes() for each in received)[:size]


def any_of(strategy: object, condition: object) -> bool:
    """Whether a condition holds on one of the workers; all of them must call it."""
    return bool(sum_over(strategy, bool(condition)) > 0)


def are_alike(strategy: object, content: str | bytes) -> bool:
    """Whether all workers give the same content; all of them must call it."""
    content = content.encode() if isinstance(content, str) else content
    return np.ptp(gather(strategy, np.array([zlib.crc32(content)]))) == 0


def sum_in_graph(strategy: tf.distribute.Strategy, tensor: tf.Tensor):
    """Returns a tensor added up over the workers; called in a tf.function, outside of replicas."""
    if count(strategy) == 1:
        return tensor

    def replica_fn():
        context = tf.distribute.get_replica_context()
        is_first = replica_id() == local_replicas(strategy)[0]
        # A tensor that was made on the replica's device: TensorFlow asks for one.
        value = tf.identity(tensor) if is_first else tf.zeros_like(tensor)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    return strategy.experimental_local_results(on_replicas(strategy, replica_fn))[0]


def assign_mean(strategy: tf.distribute.Strategy, variables: list) -> None:
    """Gives variables that hold a value per replica their mean over all replicas."""

    def replica_fn():
        context = tf.distribute.get_replica_context()
        values = [variable.read_value() for variable in variables]
        for variable, mean in zip(
            variables, context.all_reduce(tf.distribute.ReduceOp.MEAN, values), strict=True
        ):
            variable.assign(mean)

    # A partial has no code by which TensorFlow would count, and warn of, its traces.
    tf.function(functools.partial(on_replicas, strategy, replica_fn), autograph=False)()
