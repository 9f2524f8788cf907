"""Finds data, losses and metrics that cannot give a right number, before they change a weight."""

import keras
import numpy as np
import tensorflow as tf

from kerasdist.training import batches, graph_errors, keras_adapter, workers


def assert_finite_labels(model, batch, *, is_first) -> list:
    """Returns checks that the labels and sample weights of the first batch are numbers.

    Losses of the user's own may give NaN a meaning, so only Keras' losses are guarded.

    Args:
        model: A compiled model.
        batch: The global batch, (x, y) or (x, y, sample_weight), distributed or not.
        is_first: bool scalar; later batches are not looked at.

    Raises:
        tf.errors.InvalidArgumentError: From the returned operation, when it runs.
    """
    if not isinstance(batch, (tuple, list)) or not keras_adapter.has_stock_losses(model):
        return []
    return [
        tf.cond(is_first, lambda leaf=leaf, text=text: _check(leaf, text), lambda: False)
        for text, part in zip(_MESSAGES, batch[1:3], strict=False)
        for distributed in tf.nest.flatten(part)
        for leaf in model.distribute_strategy.experimental_local_results(distributed)
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
    ]


def check_can_predict(model, data) -> None:
    """Checks that every worker can predict all data.

    Args:
        model: Whatever has a `predict`.
        data: What was given to it.

    Raises:
        ValueError: It is distributed over several workers.
    """
    strategy = keras_adapter.strategy_of(model)
    if isinstance(data, tf.distribute.DistributedDataset) and workers.count(strategy) > 1:
        raise ValueError(
            "`predict` returns the predictions of all data on every worker, and of a distributed "
            "dataset each worker has its own part. Give `predict` the dataset that was "
            "distributed. Received: x, a DistributedDataset."
        )


def digest(batch):
    """Returns a number that differs for different global batches: float64 scalar.

    Sums over the examples, each times its position, so that the order counts too. 0 for batches
    that are distributed already: every worker has its own.
    """
    numbers = [tf.zeros([], tf.float64)]
    if batches.is_distributed(batch):
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


def check_equal_batches(strategy, digest_of_worker: float) -> None:
    """Checks that all workers read the same first batch; all of them must call it.

    Raises:
        ValueError: They did not.
    """
    digests = np.zeros(workers.count(strategy))
    digests[workers.index_of(strategy)] = digest_of_worker
    digests = workers.sum_over(strategy, digests)
    if not np.allclose(digests, digests[0], rtol=1e-9, atol=0, equal_nan=True):
        raise ValueError(
            "The workers read different first batches. Every worker reads the whole data in the "
            "same order and takes its part of each batch, so shuffling must be the same on all: "
            "give `shuffle` a seed, or call `keras.utils.set_random_seed` before the data is made. "
            "Data that each worker reads for itself goes through "
            "`strategy.distribute_datasets_from_function`."
        )


def check_loss_shape(values, num_examples) -> None:
    """Checks that a loss has one value (or more) for each example, or is a scalar.

    Without the batch axis, the losses of several replicas cannot be weighed by their examples.

    Raises:
        ValueError: The first axis is known not to be the batch; names the loss.
    """
    is_open = not isinstance(num_examples, int)
    size = values.shape[0] if values.shape.rank else None
    if size is not None and (is_open or size != num_examples):
        # Keras opens a name scope with the name of the loss around its call.
        name = tf.get_current_name_scope().rpartition("/")[2]
        raise ValueError(
            f"Loss '{name}' returned shape {tuple(values.shape)} for a batch of "
            f"{'any number of' if is_open else num_examples} examples. Return one loss per "
            "example, [batch, ...], or a scalar: the mean over the batch."
        )


def check_metrics(model, logs) -> None:
    """Checks that the results of the user's own metrics are scalars, or dicts of scalars.

    Some of Keras' metrics return a value for each class, which is left to them.

    Raises:
        ValueError: One is not; names it.
    """
    for name, value in logs.items():
        if isinstance(value, dict):
            check_metrics(model, value)
        elif keras.ops.ndim(value) > 0 and name not in keras_adapter.stock_metric_names(model):
            raise ValueError(
                f"Metric '{name}' returned shape {tuple(value.shape)} from `result()`. Return a "
                "scalar, or a dict of scalars with a name for each."
            )


def _check(leaf, message):
    with tf.control_dependencies([tf.debugging.assert_all_finite(leaf, message)]):
        return tf.constant(False)


_MESSAGES = tuple(
    graph_errors.message(
        ValueError,
        f"The {part} of the first batch hold NaN or infinity. No weight was changed. Look at "
        "the data, for example with `dataset.take(1)`.",
    )
    for part in ("labels", "sample weights")
)
