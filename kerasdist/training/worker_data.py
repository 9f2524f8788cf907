"""The user's data where asynchronous workers read it.

Whichever worker is free takes the next steps of an epoch. Where its batches come from depends on
the data:

- Data that ends: every worker reads all of it in the same order, and skips what other workers take.
  Each batch is trained once, also where one worker is faster. Steps that were lost with a worker
  run again on another one; what that one has skipped already, the chief reads and sends.
- Data that never ends: every worker reads its own part of it, each `num_workers`-th batch.
- A function of the InputContext: every worker reads what the function makes for it.
- Python's generators, and arrays too large to send: the chief reads, and sends each batch.
"""

import itertools
from collections.abc import Callable, Iterator

import tensorflow as tf

from kerasdist.training import keras_adapter

# TensorFlow sends a dataset, with the arrays in it, as one message of at most 2 GiB.
_MOST_BYTES_SENT = 2**29
_generations = itertools.count(1)


class WorkerData:
    """The data of `fit` or `evaluate`, set up on every worker.

    Args:
        dataset: Of batches; or a function of `tf.distribute.InputContext` that makes one for each
            worker.
        strategy: Our ParameterServerStrategy.
        num_bytes: Of the arrays in the dataset, where they are known to be in it.
        is_python: Whether Python makes the batches, which only the chief can do.

    Attributes:
        description: Who reads what, for the person who trains.
        is_strict: Whether steps must have exactly the batches at their position.
        iterators: One on each worker, to be passed to what is scheduled; None where the chief
            reads. They yield pairs of a position, from 0, and a batch.
        generation: A number that no other data has.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset | Callable,
        strategy,
        *,
        num_bytes: int = 0,
        is_python: bool = False,
    ):
        self._copy: Callable | None = None
        self.generation = next(_generations)
        self.is_strict = False
        self.iterators = None
        num_workers = strategy.served_cluster.num_workers
        if not isinstance(dataset, tf.data.Dataset):
            self.description = "each worker reads what the function makes for it"
            makers = [
                _copier_of_part(dataset, tf.distribute.InputContext(num_workers, index, 1))
                for index in range(num_workers)
            ]
            self.iterators = keras_adapter.iterators_of_workers(strategy.coordinator, makers)
            return
        copy = None
        if not is_python and num_bytes < _MOST_BYTES_SENT:
            copy = keras_adapter.copier(_untuned(dataset))
        if copy is None:
            self.description = "the chief reads it and sends each batch to a worker"
            return
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            self.description = "each worker reads its own part of it"
            makers = [_sharded(copy, num_workers, index) for index in range(num_workers)]
        else:
            self.description = "each worker reads it and takes the batches that fall to it"
            self.is_strict = True
            self._copy = lambda: _endless(copy())
            makers = [self._copy] * num_workers
        self.iterators = keras_adapter.iterators_of_workers(strategy.coordinator, makers)

    def reread(self, position: int, num_steps: int) -> Iterator:
        """Yields the batches of some steps again, read by the chief."""
        assert self._copy is not None  # Only strict data is missed.
        for _, batch in self._copy().skip(position).take(num_steps):
            yield batch


def _copier_of_part(function, context):
    # Made by the chief: what a function holds from around it is not on the workers.
    copy = keras_adapter.copier(_untuned(function(context)))
    if copy is None:
        raise ValueError(
            "The dataset that the function given as data returns calls Python, which is not on the "
            "workers. Use TensorFlow's operations, or give the generator itself: the chief then "
            "reads it."
        )
    return lambda: copy().enumerate()


def _sharded(copy, num_workers, index):
    return lambda: copy().shard(num_workers, index).enumerate()


def _endless(dataset):
    # In the same order on every worker.
    options = tf.data.Options()
    options.deterministic = True
    return dataset.repeat().with_options(options).enumerate().prefetch(tf.data.AUTOTUNE)


def _untuned(dataset):
    """Returns a dataset that TensorFlow does not tune while it runs, unless the user asks for it.

    Deleting a tuned one can take as long as it has run (see `data_source`), in which its worker
    runs nothing. Without, AUTOTUNE means one parallel call for each core, up to 16.
    """
    options = tf.data.Options()
    if dataset.options().autotune.enabled is None:
        options.autotune.enabled = False
    return dataset.with_options(options)
