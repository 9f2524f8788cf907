"""Gives workers beside parameter servers the data of the user.

Whichever worker is free takes the next batches of an epoch. Where its batches come from depends on
the data:

- Updates that one worker computes at a time: every worker reads all of the data in the same order,
  also where it has no end, and joins the batches of each update.
- Data that ends: every worker reads all of it in the same order, and skips what other workers take.
  Each batch is trained once, also where one worker is faster. Steps that were lost with a worker
  run again on another one; what that one has skipped already, the chief reads and sends.
- Data that never ends: every worker reads its own part of it, each `num_workers`-th batch.
- A function of the InputContext: every worker reads what the function makes for it.
- Python's generators, arrays too large to send, what is shuffled and then cached, what is cached in
  a file, which two workers cannot write, what a tf.data service gives each reader in an order of
  its own, what reads a variable, what a single worker or synchronous ones would have to shuffle
  twice, and all data where the chief alone is deterministic: the chief reads, and sends each batch.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kerasdist.private import coordinator_adapter, dataset_adapter, runtime
from kerasdist.support import memory
from kerasdist.training.context import deployment, peers
from kerasdist.training.data import element_order, input_functions, joined_batches, own_rows
from kerasdist.training.data.transformations import has_variables

# 512 MiB of arrays. TensorFlow sends a dataset as one message of at most 2 GiB, in which there may
# be more than the arrays that are known: what its functions hold, too.
_MOST_BYTES_SENT = 2**29
# TensorFlow's words for a variable that a dataset reads on another task.
_OF_SERVER = re.compile(r"access resource (\S+?)(?:/\d+)? located in device /job:ps")


class WorkerDataSource:
    """The data of `fit` or `evaluate`, set up on every worker.

    Args:
        dataset: Of batches; or a function of `tf.distribute.InputContext` that makes one for each
            worker.
        strategy: Our ParameterServerStrategy.
        num_bytes: Of the arrays in the dataset, where they are known to be in it.
        is_python: Whether Python makes the batches, which only the chief can do.
        num_joined: How many batches each element is joined of, which one worker takes at a time; of
            what a function makes, a batch of each worker in turn. None for the batches themselves.

    Attributes:
        description: Who reads what, for the person who trains.
        is_strict: Whether steps must have exactly the batches at their position.
        is_counted: Whether it is known how many batches there are.
        is_on_workers: Whether workers read; else the chief does.
        element_spec: Of a batch; None for data that functions make.
        num_workers: How many workers there are.
        coordinator: Of the workers.
        copy: Makes a copy of the dataset on another task; None where the chief reads.
        on_workers: A dataset on each worker, where these read.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset | Callable,
        strategy: tf.distribute.Strategy,
        *,
        num_bytes: int = 0,
        is_python: bool = False,
        num_joined: int | None = None,
    ):
        remote = deployment.remote_workers(strategy)
        self.coordinator = remote.coordinator
        self.copy: Callable | None = None
        self.element_spec: Any = None
        self.on_workers: Any = None
        self.is_strict, self.is_counted, self.is_on_workers = False, True, True
        self.num_workers = num_workers = peers.num_workers(strategy)
        if num_joined is not None:
            is_dataset = isinstance(dataset, tf.data.Dataset)
            dataset = dataset if is_dataset else _of_all_parts(dataset, num_workers)
            dataset = joined_batches.joined(dataset, num_joined)
        if not isinstance(dataset, tf.data.Dataset):
            self.description = "each worker reads what the function makes for it"
            self._dataset = None
            self._set_up([_maker_of_part(dataset, num_workers, i) for i in range(num_workers)])
            return
        self.element_spec = dataset.element_spec
        cardinality = dataset.cardinality()
        self.is_counted = int(cardinality) not in (0, tf.data.UNKNOWN_CARDINALITY)
        untuned = _untuned(dataset)
        # Otherwise tf.data changes a dataset on the chief, and its iterators do not fit elsewhere.
        is_alike = remote.is_deterministic == runtime.is_deterministic()
        is_for_copies = is_alike and not is_python and not _is_for_one_reader(dataset)
        if is_for_copies and num_bytes < _MOST_BYTES_SENT:
            is_in_one_order = num_workers == 1 or remote.num_to_aggregate is not None
            self.copy = _copier(untuned, is_in_one_order=is_in_one_order)
        if self.copy is None:
            self.description = "the chief reads it and sends each batch to a worker"
            self._dataset, self.is_on_workers = dataset, False
        elif cardinality == tf.data.INFINITE_CARDINALITY and num_joined is None:
            self.description = "each worker reads its own part of it"
            self._set_up_parts(untuned)
        else:
            self.description = "each worker reads it and takes the batches that fall to it"
            self.is_strict = True
            self._dataset = _in_order(untuned)
            self._set_up([self._maker(_in_order)] * num_workers)

    def start(self) -> "Pass":
        """Returns a pass that begins at the first batch."""
        return Pass(self, None if self._dataset is None else iter(self._dataset))

    def _set_up_parts(self, dataset: tf.data.Dataset) -> None:
        """Sets up a part for each worker; where it can be, one that prepares no other batches."""
        number = self.num_workers
        own = [own_rows.batches_of_worker(dataset, number, index) for index in range(number)]
        parts = [each.enumerate() for each in own if each is not None]
        makers = [make for part in parts if (make := _copier(part)) is not None]
        if len(makers) == number and self._may_be_sent_for_each(dataset):
            self._dataset = parts[0]
        else:
            self._dataset = _part(dataset, number, 0)
            makers = [self._maker(_part, number, index) for index in range(number)]
        self._set_up(makers)

    def _may_be_sent_for_each(self, dataset: tf.data.Dataset) -> bool:
        """Whether the chief can hold a copy of a dataset for each worker."""
        num_bytes = len(dataset_adapter.serialized_graph(dataset).numpy())
        return self.num_workers * num_bytes < _MOST_BYTES_SENT

    def _set_up(self, makers: list[Callable]) -> None:
        self.on_workers = coordinator_adapter.datasets_of_workers(self.coordinator, makers)

    def _maker(self, arrange: Callable, *arguments: int) -> Callable:
        return functools.partial(_copied, self.copy, arrange, *arguments)


class Pass:
    """One pass over the data.

    Args:
        data: Where it is read.
        iterator: The chief's: over batches where the chief reads; else one that stays at the first
            batch, for the order. None for data that functions make.

    Attributes:
        generation: A number that no other pass has.
    """

    def __init__(self, data: WorkerDataSource, iterator: Any):
        self.data = data
        self.generation = next(memory.PROCESS.data_generations)
        self._iterator = iterator
        self._iterators: Any = None
        self._num_skipped = 0

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        """Returns the next batch, where the chief reads."""
        return next(self._iterator)

    def begin_at(self, position: int) -> None:
        """Lets workers that read parts of their own skip what is before a position, in all parts.

        It has an effect before the first call of `iterators`: all skip as many batches.
        """
        if not self.data.is_strict:
            self._num_skipped = position // self.data.num_workers

    def iterators(self, progress: str) -> Any:
        """Returns one on each worker, of pairs of a position, from 0, and a batch.

        Only made for passes that are used: Keras makes some that are not.

        Args:
            progress: Name of the numbers of each worker that say how far it has read.
        """
        if self._iterators is None:
            self._iterators = coordinator_adapter.iterators_of_workers(
                self.data.coordinator,
                self.data.on_workers,
                self._state,
                progress=progress,
                generation=self.generation,
                num_skipped=self._num_skipped,
            )
        return self._iterators

    @functools.cached_property
    def num_batches(self) -> int:
        """How many batches there are; the chief reads all of them to know it."""
        return sum(1 for _ in self.reread(0, None))

    def reread(self, position: int, num_batches: int | None) -> Iterator:
        """Yields some batches again, read by the chief; None yields all from a position on."""
        assert self.data.copy is not None  # Only strict data is missed.
        again = dataset_adapter.iterator_over(_in_order(self.data.copy()), self._state)
        end = None if num_batches is None else position + num_batches
        for _, batch in itertools.islice(again, position, end):
            yield batch

    @functools.cached_property
    def _state(self) -> Any:
        return None if self._iterator is None else dataset_adapter.position_state(self._iterator)


def _copier(
    dataset: tf.data.Dataset, *, is_of_worker: bool = False, is_in_one_order: bool = False
) -> Callable[[], tf.data.Dataset] | None:
    """Returns a function that makes a copy of a dataset on another task; None if none is alike.

    Args:
        dataset: What is to be copied.
        is_of_worker: Whether one worker alone reads it, in any order.
        is_in_one_order: Whether the order must be that of one device, since no updates of other
            workers come in between: there is one worker, or they are synchronous.

    Raises:
        ValueError: It reads a variable that is on a parameter server.
    """
    try:
        graph = dataset_adapter.serialized_graph(dataset)
    except tf.errors.FailedPreconditionError as error:
        if not (found := _OF_SERVER.search(str(error))):
            raise
        raise ValueError(
            f"The dataset reads the variable '{found[1]}', which is on a parameter server, where "
            "no dataset can read. Create what `dataset.map` calls, such as a layer, outside of "
            "`strategy.scope()`."
        ) from error
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    is_alike = is_of_worker or not (
        caches_an_order(definition)
        or has_variables(definition)
        or (is_in_one_order and shuffles_late(definition))
    )
    if b"PyFunc" in graph.numpy() or not is_alike:
        return None
    change = element_order.shuffle_apart if is_of_worker else element_order.put_in_order
    if change(definition):
        graph = tf.convert_to_tensor(definition.SerializeToString())
    return functools.partial(dataset_adapter.from_graph, graph, dataset.element_spec)


def looked_at(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns a copy of which elements may be read, and no other reader knows; None if none is."""
    try:
        copy = _copier(dataset, is_of_worker=True)
    except (tf.errors.OpError, ValueError):  # The data itself says it, in its turn.
        return None
    return None if copy is None or _is_for_one_reader(dataset) else copy()


def _is_for_one_reader(dataset: tf.data.Dataset) -> bool:
    """Whether another reader writes the same file, or has other elements of a tf.data service."""
    return bool(dataset_adapter.cache_files(dataset) or dataset_adapter.service_jobs(dataset))


def caches_an_order(graph: tf.compat.v1.GraphDef) -> bool:
    """Whether a dataset keeps what it has once shuffled or drawn, as `shuffle(n).cache()` does.

    What the first pass has kept, the copies do not know.
    """
    drawing: set[str] = set()
    # A function is made after those that it calls, but TensorFlow lists them as it likes.
    for _ in graph.library.function:
        drawing |= {
            function.signature.name
            for function in graph.library.function
            if any(_draws(node, drawing) for node in function.node_def)
        }
    caches = [node for node in graph.node if node.op.startswith("CacheDataset")]
    return any(_draws(node, drawing) for node in _upstream(caches, graph))


def shuffles_late(graph: tf.compat.v1.GraphDef) -> bool:
    """Whether a dataset has a shuffle that begins only when the first element is read, or later.

    As what stands before another shuffle. The chief's iterator, which stays at the first element,
    does not know its order: a copy draws its own, and not from what the copies of other datasets
    over the same shuffle, such as those of validation, have drawn from before.
    """
    openers = [node for node in graph.node if node.op.startswith(("Shuffle", "Concatenate"))]
    return any(node.op.startswith("Shuffle") for node in _upstream(openers, graph))


def _upstream(some: list, graph: tf.compat.v1.GraphDef) -> Iterator:
    """Yields the nodes of a graph with which some of them are computed."""
    nodes = {node.name: node for node in graph.node}
    seen, left = set(), list(some)
    while left:
        for name in left.pop().input:
            node = nodes[name.split(":")[0].lstrip("^")]
            if node.name not in seen:
                seen.add(node.name)
                left.append(node)
                yield node


def _draws(node: Any, drawing: set[str]) -> bool:
    functions = {attribute.func.name for attribute in node.attr.values()}
    return "Shuffle" in node.op or node.op.startswith("Random") or bool(functions & drawing)


def _copied(copy: Callable, arrange: Callable, *arguments: int) -> tf.data.Dataset:
    return arrange(copy(), *arguments)


def _maker_of_part(function: Callable, num_workers: int, index: int) -> Callable:
    # Made by the chief: what a function holds from around it is not on the workers.
    dataset = input_functions.make(function, num_workers=num_workers, index=index)
    copy = _copier(_untuned(dataset), is_of_worker=True)
    if copy is None:
        raise ValueError(
            "The dataset that the function given as data returns calls Python, which is not on the "
            "workers. Use TensorFlow's operations, or give the generator itself: the chief then "
            "reads it."
        )
    return lambda: copy().enumerate()


def _of_all_parts(function: Callable, num_workers: int) -> tf.data.Dataset:
    """Returns the batches that a function makes for the workers, of one after the other."""
    parts = [
        input_functions.make(function, num_workers=num_workers, index=index)
        for index in range(num_workers)
    ]
    turns = tf.data.Dataset.range(num_workers).repeat()
    return tf.data.Dataset.choose_from_datasets(parts, turns)


def _part(dataset: tf.data.Dataset, num_workers: int, index: int) -> tf.data.Dataset:
    return dataset.shard(num_workers, index).enumerate()


def _in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    dataset = element_order.with_order_option(dataset)  # The same on every worker.
    return dataset.enumerate().prefetch(tf.data.AUTOTUNE)


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that TensorFlow does not tune while it runs, unless the user asks for it.

    Deleting a tuned one can take as long as it has run (see `data.data_source`), in which its
    worker runs nothing. Without, AUTOTUNE means one parallel call for each core, up to 16.
    """
    options = tf.data.Options()
    if dataset.options().autotune.enabled is None:
        options.autotune.enabled = False
    return dataset.with_options(options)
