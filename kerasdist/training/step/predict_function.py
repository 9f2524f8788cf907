"""The function that `predict` calls for every batch."""

import tensorflow as tf

from kerasdist.training import peers
from kerasdist.training.data import batches
from kerasdist.training.data.data_source import without_optionals
from kerasdist.training.step import late_variables
from kerasdist.training.step.graph_function import graph_function


class PredictFunction:
    """Runs a model's predict_step over the replicas of this worker.

    Each of several workers predicts the whole data and returns all of it, so that one of them can
    call `predict` alone.

    An output without axes is taken for a mean over the examples, such as a loss: it is that of the
    replicas, weighed by their examples. What is computed from weights alone is so, too. One that is
    no floating point number is that of the first replica.

    Args:
        model: A model of one of our strategies.
    """

    def __init__(self, model):
        self._strategy = model.distribute_strategy
        self._step = model.predict_step
        if model.jit_compile and self._strategy.num_replicas_in_sync == 1:
            self._step = graph_function(model.predict_step, jit_compile=True)
        self._run = self._predict
        if not model.run_eagerly:
            self._run = graph_function(self._predict, reduce_retracing=True)

    def __call__(self, data: list):
        """Returns the outputs of a list of global batches as one structure of tensors."""
        outputs = [self._run(batches.as_tensors(without_optionals(batch))) for batch in data]
        return outputs[0] if len(outputs) == 1 else joined(*outputs)

    def _predict(self, batch):
        replicas = peers.local_replicas(self._strategy)
        shares = batches.local_shares_of(batch, self._strategy)
        counts = batches.local_counts_of(batch, self._strategy)

        def replica_fn():
            return self._step(shares[peers.replica_id() - replicas[0]])

        with late_variables.made_at_once(self._strategy):
            outputs = self._strategy.run(replica_fn)
        outputs = self._strategy.experimental_local_results(outputs)
        if len(replicas) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: _of_replicas(parts, counts), *outputs)


def joined(*structures):
    """Returns structures of tensors, joined along their first axis; scalars get one."""
    if len(structures) == 1:
        return structures[0]
    return tf.nest.map_structure(
        lambda *parts: tf.stack(parts) if parts[0].shape.rank == 0 else batches.joined(parts),
        *structures,
    )


def _of_replicas(parts: tuple, counts: list):
    """Returns an output of all replicas; nothing of one that computed with a borrowed example."""
    if parts[0].shape.rank == 0:
        return _mean(parts, counts)
    return batches.joined([_cut(part, count) for part, count in zip(parts, counts, strict=True)])


def _mean(parts: tuple, counts: list):
    dtype = parts[0].dtype
    if not dtype.is_floating:
        return parts[0]
    # In float64, so that the mean of equal numbers is the same number.
    counts = tf.cast(tf.stack(counts), tf.float64)
    summed = tf.math.multiply_no_nan(tf.cast(tf.stack(parts), tf.float64), counts)
    return tf.cast(tf.reduce_sum(summed) / tf.reduce_sum(counts), dtype)


def _cut(output, count):
    if isinstance(count, int) and count > 0:
        return output
    size = tf.cast(batches.num_examples(output), tf.int64)
    return batches.rows(output, 0, tf.where(count > 0, size, tf.zeros_like(size)))
