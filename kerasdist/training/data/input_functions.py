"""Makes each worker's own data with a function of `tf.distribute.InputContext`.

    def dataset_of(context):
        files = tf.data.Dataset.list_files("train-*.tfrecord", shuffle=False)
        files = files.shard(context.num_input_pipelines, context.input_pipeline_id)
        batch_size = context.get_per_replica_batch_size(global_batch_size)
        return tf.data.TFRecordDataset(files).map(parse).batch(batch_size)

    model.fit(dataset_of, ...)

The function's dataset yields what its worker takes in one step, which is then split over the
worker's own replicas: the context counts a worker as one replica. On the devices of one machine
that is the global batch; of several workers that make a step together, each one's part of it; with
asynchronous workers, of which each makes steps of its own, the whole batch.
`get_per_replica_batch_size` gives the right size everywhere.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.training.context import peers, running_call, traits
from kerasdist.training.data import file_shards


def is_function(x: Any) -> bool:
    """Whether what was given as data is a function that makes it."""
    return callable(x) and not isinstance(x, (tf.data.Dataset, keras.utils.PyDataset))


def dataset_of_worker(function: Callable, strategy: tf.distribute.Strategy) -> tf.data.Dataset:
    """Returns the dataset that a function makes for this worker; in `predict` that of all data.

    With parameter servers it is that of the first worker.
    """
    if running_call.reads_whole_data():
        return make(function, num_workers=1, index=0)
    if traits.has_remote_variables(strategy):
        return make(function, num_workers=peers.num_workers(strategy), index=0)
    index, num_workers = peers.index_of(strategy), peers.count(strategy)
    return make(function, num_workers=num_workers, index=index, num_replicas=num_workers)


def make(
    function: Callable, *, num_workers: int, index: int, num_replicas: int = 1
) -> tf.data.Dataset:
    """Calls a function of the InputContext.

    Args:
        function: Returns a dataset of batches.
        num_workers: How many workers read.
        index: Of the worker that reads what the function returns.
        num_replicas: How many workers share a step.

    Raises:
        TypeError: It returns something else.
    """
    dataset = function(tf.distribute.InputContext(num_workers, index, num_replicas))
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "The function given as data must return a tf.data.Dataset of batches. Received: "
            f"{dataset!r}."
        )
    return dataset


def share(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of one of several workers with the sizes of its batches.

    They are in the triples of `file_shards.with_next_size`.

    Raises:
        ValueError: Batches of which TensorFlow cannot make an empty one, for a worker whose data
            ends before that of the others.
    """
    leaves = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves):
        raise ValueError(
            "Over several workers, the dataset of a function given as data must have batches of "
            f"dense tensors. Received: {dataset.element_spec}. Give the dataset itself: every "
            "worker then reads all of it and takes its part of each batch."
        )
    return file_shards.with_next_size(dataset)
