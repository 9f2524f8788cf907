"""Finds data, losses and metrics that cannot give a right number."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.private import custom_parts, dataset_adapter, scopes
from kerasdist.support.users_line import warn
from kerasdist.training.context import peers, running_call
from kerasdist.training.data.batches import WorkerPart
from kerasdist.training.hooks import divided_values


def note_infinite(
    variable: tf.Variable, model: keras.Model, batch: Any, *, is_first: tf.Tensor
) -> list:
    """Notes whether labels and sample weights of the first batch are numbers.

    Losses of the user's own may give NaN a meaning, so only Keras' losses are looked at.

    Args:
        variable: bool [2], for labels and sample weights; becomes True where they hold NaN or
            infinity.
        model: A compiled model.
        batch: The global batch, (x, y) or (x, y, sample_weight), distributed or not.
        is_first: bool scalar; later batches are not looked at.

    Returns:
        What must run with the step, if anything.
    """
    if not isinstance(batch, (tuple, list)) or not custom_parts.has_original_losses(model):
        return []
    parts = [_floats_of(part, model.distribute_strategy) for part in batch[1:3]]
    if not any(parts):
        return []

    def note():
        labels, weights = map(_has_infinite, [*parts, []][:2])
        with tf.control_dependencies([variable.assign([labels, weights])]):
            return tf.constant(True)

    return [tf.cond(is_first, note, lambda: False)]


def warn_of_infinite(variable: Any) -> None:
    """Warns of what `note_infinite` has noted."""
    for part, is_infinite in zip(("labels", "sample weights"), variable.numpy(), strict=True):
        if is_infinite:
            warn(
                f"The {part} of the first batch hold NaN or infinity, and with them the loss and "
                "the weights, unless the loss leaves them out. Look at the data, for example with "
                "`dataset.take(1)`."
            )


def check_can_predict(model: Any, data: Any) -> None:
    """Checks that every worker can predict all data.

    Args:
        model: Whatever has a `predict`.
        data: What was given to it.

    Raises:
        ValueError: It is distributed over several workers.
    """
    strategy = scopes.strategy_of(model)
    if isinstance(data, tf.distribute.DistributedDataset) and peers.count(strategy) > 1:
        raise ValueError(
            "`predict` returns the predictions of all data on every worker, and of a distributed "
            "dataset each worker has its own part. Give `predict` the dataset that was "
            "distributed. Received: x, a DistributedDataset."
        )


def check_service(dataset: Any, strategy: tf.distribute.Strategy, *, is_own: bool) -> None:
    """Checks that several workers get each example of a tf.data service once.

    What is wrong may not show in the first batches that `check_equal_batches` compares.

    Args:
        dataset: That this worker reads.
        strategy: A strategy of ours.
        is_own: Whether it has what this worker takes of a step, and not the global batches.

    Raises:
        ValueError: They do not.
    """
    jobs = dataset_adapter.service_jobs(dataset)
    if peers.count(strategy) == 1 or not jobs:
        return
    if running_call.reads_whole_data():
        raise ValueError(
            "`predict` returns the predictions of all data, in its order, on every worker, and a "
            "tf.data service has another order for each of them, or a part of the data. Give "
            "`predict` the dataset without `distribute(...)`."
        )
    if not is_own:
        raise ValueError(
            "The data comes from a tf.data service, which gives each worker other batches, or the "
            "same ones in another order, where every worker must read the same and take its part "
            "of each. Give a function that returns what a worker takes in a step, with one "
            "`job_name` for all: `fit(lambda context: dataset)`, with "
            "`context.get_per_replica_batch_size(batch_size)` examples in a batch."
        )
    if "" in jobs or not peers.are_alike(strategy, repr(jobs).encode()):
        raise ValueError(
            "Each worker would get all of the data that comes from a tf.data service, since they "
            f"have no `job_name` in common. Received on this one: job_name={jobs[0]!r}. Give "
            '`distribute` the same name on all workers, such as job_name="train".'
        )


def warn_of_service(dataset: Any, strategy: tf.distribute.Strategy, step: int) -> None:
    """Warns where an epoch goes on in its midst with data of a tf.data service; the chief does.

    Args:
        dataset: Of any kind.
        strategy: A strategy of ours.
        step: Steps of the epoch that were made before.
    """
    if step and peers.is_chief(strategy) and dataset_adapter.service_jobs(dataset):
        warn(
            "The training goes on in the middle of an epoch with data of a tf.data service, which "
            "may give it in another order than before: with several servers, some examples of this "
            "epoch may count twice, and others not at all. A `Checkpoint` without `every_steps` "
            "and `every_secs` saves between epochs."
        )


def digest(batch: Any):
    """Returns a number that differs for different global batches: float64 scalar.

    Sums over the examples, each times its position, so that the order counts too. 0 for batches
    that are distributed already: every worker has its own.
    """
    if isinstance(batch, WorkerPart):
        return batch.digest[0]
    numbers = [tf.zeros([], tf.float64)]
    if divided_values.is_distributed(batch):
        return numbers[0]
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is None:
            continue
        values = tf.convert_to_tensor(leaf)
        if values.dtype == tf.string:
            values = tf.strings.to_hash_bucket_fast(values, 2**30)
        values = tf.reshape(tf.cast(values, tf.float64), [-1])
        numbers.append(tf.reduce_sum(values * tf.range(1, tf.size(values) + 1, dtype=tf.float64)))
    return tf.add_n(numbers)


def check_equal_batches(strategy: tf.distribute.Strategy, digest_of_worker: float) -> None:
    """Checks that all workers read the same first batch of an epoch; all of them must call it.

    Raises:
        ValueError: They did not.
    """
    digests = peers.gather(strategy, np.array([digest_of_worker]))
    if not np.allclose(digests, digests[0], rtol=1e-9, atol=0, equal_nan=True):
        raise ValueError(
            "The workers read different first batches in an epoch. Every worker reads the whole "
            "data in the same order and takes its part of each batch, so what is random must be "
            "the same on all: give `shuffle`, or a generator of your own, a seed, or call "
            "`keras.utils.set_random_seed` before the data is made. If each worker reads a part of "
            "its own, as with Ray's `get_dataset_shard(...).to_tf(...)`, give a function that "
            "returns the part: `fit(lambda context: dataset)`."
        )


def check_equal_num_batches(strategy: tf.distribute.Strategy, num_batches: int | None) -> None:
    """Checks that the data of all workers has the same length; all of them must call it.

    Args:
        strategy: A strategy of ours.
        num_batches: That this worker has; None where nobody knows, or not all are read.

    Raises:
        ValueError: They differ.
    """
    if told := _difference(strategy, -1 if num_batches is None else num_batches):
        raise ValueError(
            f"The workers have data of different length, in batches: {told}. Every worker reads "
            "the whole data and takes its part of each batch, so give the same data to all of "
            "them, or each its own part: `fit(lambda context: dataset)`."
        )


def check_equal_lengths(strategy: tf.distribute.Strategy, num_examples: int) -> None:
    """Checks that all workers evaluated the same data; all of them must call it.

    Args:
        strategy: A strategy of ours.
        num_examples: That all of them have evaluated together, as this one knows it.

    Raises:
        ValueError: They did not.
    """
    if told := _difference(strategy, num_examples):
        raise ValueError(
            f"The workers evaluate data of different length: {told}. Every worker reads the whole "
            "data and takes its part of each batch, so give the same examples to all of them, and "
            "let a callback that stops the evaluation stop it on all."
        )


def _difference(strategy: tf.distribute.Strategy, number: int) -> str | None:
    """Returns in words the numbers of all workers, -1 for an unknown one; None if all are alike."""
    if peers.count(strategy) == 1:
        return None
    numbers = peers.gather(strategy, np.array([number]))[:, 0].astype(int)
    pairs = zip(numbers, peers.tasks(strategy), strict=True)
    told = (f"{each if each >= 0 else 'unknown'} on {task}" for each, task in pairs)
    return ", ".join(told) if len(set(numbers)) > 1 else None


def check_metrics(model: keras.Model, logs: dict) -> None:
    """Checks that the results of the user's own metrics are scalars, or dicts of scalars.

    Some of Keras' metrics return a value for each class, which is left to them.

    Raises:
        ValueError: One is not; names it.
    """
    for name, value in logs.items():
        if isinstance(value, dict):
            check_metrics(model, value)
        elif keras.ops.ndim(value) > 0 and name not in custom_parts.original_metric_names(model):
            raise ValueError(
                f"Metric '{name}' returned shape {tuple(value.shape)} from `result()`. Return a "
                "scalar, or a dict of scalars with a name for each."
            )


def _floats_of(part: Any, strategy: tf.distribute.Strategy) -> list:
    leaves = [
        leaf
        for distributed in tf.nest.flatten(part)
        for leaf in strategy.experimental_local_results(distributed)
    ]
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]


def _has_infinite(leaves: list):
    return tf.reduce_any([tf.reduce_any(~tf.math.is_finite(leaf)) for leaf in leaves] or [False])
